"""Converts a checkpoint to a folder that stock packages load, and uploads it to the model hub."""
