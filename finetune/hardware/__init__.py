"""GPUs and their links, torch's CUDA allocator, and its attention backends."""
