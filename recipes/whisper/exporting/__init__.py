"""The files of an export, for transformers, openai-whisper and CTranslate2."""
