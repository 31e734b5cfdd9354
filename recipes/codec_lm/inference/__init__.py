"""Speech from an exported model: prompt, decoding of tokens, codes to sound."""
