"""The parts of the walk through a broken system; `tests/e2e/test_operator_walk.py` takes them in order."""
