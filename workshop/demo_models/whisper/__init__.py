"""Training of the demo Whisper."""
