"""Proves on a temporary Redis that a configured kind neither loses nor invents anything."""
