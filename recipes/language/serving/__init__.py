"""HTTP server for chats: OpenAI's chat completions, several answers in one running batch."""
