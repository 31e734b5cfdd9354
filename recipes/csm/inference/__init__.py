"""Speech from an exported or released model, with static key/value caches and streaming."""
