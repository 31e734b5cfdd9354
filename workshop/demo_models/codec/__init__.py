"""Training of the demo codec."""
