"""Work on a ledger as clients do it: what is drawn, what was called, and what must hold."""
