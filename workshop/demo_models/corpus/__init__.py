"""The synthetic corpus that the demo models are trained on."""
