"""The pages about a dataset: the reports, and the review of its clips."""
