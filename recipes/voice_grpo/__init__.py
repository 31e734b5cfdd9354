"""Training of a Qwen3-TTS voice by rewards for its own speech: intelligibility and similarity, with guards."""
