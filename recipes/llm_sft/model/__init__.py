"""A small checkpoint for tests."""
