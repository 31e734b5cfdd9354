"""Voice activity detection, and where a recording is cut into clips."""
