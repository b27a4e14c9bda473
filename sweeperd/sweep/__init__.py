"""Index pages to script decisions to a report."""
