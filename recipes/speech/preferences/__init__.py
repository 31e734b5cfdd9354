"""Preferences between spoken clips: the judge of a clip, its reward, and pairs of clips for preference optimization."""
