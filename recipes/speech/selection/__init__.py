"""The choice among the checkpoints of a run, at several strengths, by what they speak. Imports `evaluation`, which does not import it."""
