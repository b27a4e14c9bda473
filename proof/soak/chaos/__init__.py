"""A soak during which, at random, processes, servers, connections and clocks fail: `python -m proof.soak --chaos`."""
