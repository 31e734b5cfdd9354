"""Benchmarks: one file for each claim about speed, memory or quality, and its last table in results/."""
