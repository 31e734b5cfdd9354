"""Hyperparameter tuning: the search space, the record of a study and its trials, and the report. Imports neither Ray nor torch."""
