"""Mutants: one-line faults of the product, and the command that shows that a test detects each of them."""
