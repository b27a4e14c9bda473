"""The kit: proves on an embedded Redis that a configured kind neither loses nor invents anything."""
