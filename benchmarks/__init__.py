"""
The measurements: `python -m benchmarks`. Machines are noisy, so each row compares two things in one run, in turn, and
what counts is the ratio.
"""
