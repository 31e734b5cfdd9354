"""Speech recognition with Whisper: openai-whisper, faster-whisper, and the demo model."""
