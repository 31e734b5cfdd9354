"""Voices: speaker encoders that need no base model, vectors of short windows of a recording, and which of them are one person."""
