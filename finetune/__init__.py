"""Trains, exports and generates; independent of any model. Importing this package loads nothing heavy."""
