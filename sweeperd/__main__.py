"""`python -m sweeperd`."""

from sweeperd.cli import main

if __name__ == "__main__":
    main()
