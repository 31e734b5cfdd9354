"""The classifier, and a small one for tests."""
