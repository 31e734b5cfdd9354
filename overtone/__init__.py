"""Overtone: fine-tuning of speech and language models. Importing this package loads nothing heavy."""

__version__ = "0.1.0"
