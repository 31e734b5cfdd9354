"""The training run: setup, the loop, one optimizer step, evaluation, and generation during training."""
