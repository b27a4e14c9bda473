"""What an operator asks of a system that runs, and what he repairs in it; the commands and the page show it."""
