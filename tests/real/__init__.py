"""Tests on released models: a chat model, a Whisper and a voice that packages of the ordinary index carry. `make test-real` runs them."""
