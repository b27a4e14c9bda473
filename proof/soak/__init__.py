"""A soak: the ledger under load for half an hour with a daemon that sweeps it, and then the books are checked."""
