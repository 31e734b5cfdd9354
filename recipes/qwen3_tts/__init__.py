"""Qwen3-TTS for the recipes that train it: the model, the layout of its sequences, exports and speech."""
