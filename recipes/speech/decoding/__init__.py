"""Decoding of codes from a speech model: layers with static caches, CUDA graphs, sampling, padded batches, the frame loop."""
