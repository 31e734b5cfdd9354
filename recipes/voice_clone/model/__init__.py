"""The speakers of the data, with their vectors, and tiny bases for tests."""
