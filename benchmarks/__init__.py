"""Measurements. They report and decide nothing: machines are noisy, so each compares two things in one run."""
