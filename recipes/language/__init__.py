"""Library for recipes of causal language models: chat templates, labels, attention, collation. It is not a recipe."""
