"""
The tests keep bytecode, in every environment: they start hundreds of processes, and each would compile sweeperd again;
the workers of pytest-xdist would rewrite the assertions of all the tests.
"""

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
