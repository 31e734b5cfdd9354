"""Estimates of a run before it starts: memory, a parallelism strategy, time, a launch file. Imports no live training."""
