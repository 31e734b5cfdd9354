"""Makes the demo models: a corpus of synthetic voices, and training on it."""
