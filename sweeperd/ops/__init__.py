"""What operators ask of a running system, and what they repair in it."""
