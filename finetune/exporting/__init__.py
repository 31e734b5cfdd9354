"""From a checkpoint to a folder that stock packages load, and its upload to the model hub."""
