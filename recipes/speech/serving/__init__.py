"""HTTP server for voices: a text-to-speech page, and OpenAI's speech API."""
