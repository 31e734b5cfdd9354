"""Speech from an exported model, with a static key/value cache and streaming."""
