"""What an operator sees: a real Prometheus, and the page in a real browser."""
