"""Qwen3-TTS for training: the model, its sequence layout, its configs, speaker embeddings."""
