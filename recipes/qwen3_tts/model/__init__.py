"""Qwen3-TTS for training: the model, its sequence layout, its configs, its sampling settings."""
