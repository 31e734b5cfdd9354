"""Training of the demo base model."""
