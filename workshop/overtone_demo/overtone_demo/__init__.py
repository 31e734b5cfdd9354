"""Data of Overtone's demo, without code: `models/` (archives), `new_voice/` and `sample/` (recordings of synthetic voices).

Overtone locates this folder and does not import it.
"""
