"""Proves that books and events stay exact under load, with and without faults."""
