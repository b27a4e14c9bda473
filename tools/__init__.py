"""What the maintainers of sweeperd run; no part of the package."""
