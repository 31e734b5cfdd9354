"""Voice activity detection, and segmentation of recordings into clips."""
