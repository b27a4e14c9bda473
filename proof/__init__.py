"""Programs that prove a version of sweeperd. CONTRIBUTING.md says what each shows, and when to run it."""
