"""How the demo models are made: a corpus of synthetic voices, and training on it."""
