"""HTTP server for recognizers: OpenAI's API for transcriptions."""
