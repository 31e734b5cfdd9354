"""The dataset on disk: writing, reading, checking, splitting, exporting it, and the audio codes in its rows."""
