"""Worker processes on this machine or on a Ray cluster, and the devices that they use."""
