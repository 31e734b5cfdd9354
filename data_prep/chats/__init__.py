"""Conversations for language models: reading, checking, splitting."""
