"""What recipes for causal language models share: chat templates, labels, attention, collation. No recipe itself."""
