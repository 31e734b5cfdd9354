"""What a run needs before it starts: memory, a parallelism strategy, time, a launch file. Imports no live training."""
