"""Preference optimization for any model that scores its own outputs: options, objectives, terms of the loss, and the reference."""
