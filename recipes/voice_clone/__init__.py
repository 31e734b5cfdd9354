"""Fine-tune Qwen3-TTS to speak with the voices of your recordings."""
