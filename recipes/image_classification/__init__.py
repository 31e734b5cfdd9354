"""Fine-tuning of image classifiers."""
