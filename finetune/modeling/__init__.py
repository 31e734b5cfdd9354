"""The model: loading, LoRA, quantization, the loss head, optimizers, compilation."""
