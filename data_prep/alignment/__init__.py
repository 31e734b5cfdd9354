"""Forced alignment: finds where each word of a text is spoken, and whether the text is what was spoken. Imports nothing from the
pipeline."""
