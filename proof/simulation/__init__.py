"""
A whole installation in one OS thread, on virtual time, decided by one seed: unchanged daemons, an imitated Redis,
imitated receivers. `python -m proof.simulation --seed N`; `proof/README.md` says what it shows.

Import nothing of it into another process: the kernel replaces threads and clocks, and `__main__` installs the kernel
before any other import.
"""
