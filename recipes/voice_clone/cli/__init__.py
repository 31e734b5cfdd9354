"""`finetune generate` for a voice: texts in, audio files out."""
