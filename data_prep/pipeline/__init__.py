"""The pipeline from recordings to selected clips: the stages, their cache, their progress."""
