"""Settings of other trainers in the words of this one: DeepSpeed's JSON and accelerate's YAML, key by key. Used by `overtone translate`."""
