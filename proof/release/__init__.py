"""`python -m proof.release VERSION`: prove a version, step by step, and write down what was found."""
