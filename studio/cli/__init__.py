"""Verbs of the studio."""
