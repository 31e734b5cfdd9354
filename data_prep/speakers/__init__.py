"""Voices: speaker encoders that need no base model, vectors of short windows of a recording, and their grouping by person."""
