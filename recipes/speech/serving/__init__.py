"""HTTP server for voices: a listening page, and OpenAI's speech API."""
