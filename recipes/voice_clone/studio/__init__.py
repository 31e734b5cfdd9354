"""Where the demo models are made: a corpus of synthetic voices, and the trainings on it."""
