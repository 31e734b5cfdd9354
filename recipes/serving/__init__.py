"""Many requests on one model: a fair queue, and batches that requests join and leave while they run. Imports no recipe and no torch."""
