"""Whisper for training: the network, the layout of a clip with its text, masks on the input, and a small one for tests."""
