"""The documentation as a site: pages of the repository, and a reference that is generated from the code."""
