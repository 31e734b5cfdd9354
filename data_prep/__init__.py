"""From recordings to training data, verb by verb. Importing this package loads nothing heavy."""
