"""The whisper recipe: fine-tunes OpenAI's Whisper to transcribe one's own words, voices and languages."""
