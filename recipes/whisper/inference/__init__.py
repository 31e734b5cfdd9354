"""An exported Whisper transcribes clips and recordings."""
