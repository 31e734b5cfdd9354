"""JSONL datasets: the index of row lengths, the cache of samples, batches, packing, and their balance over ranks."""
