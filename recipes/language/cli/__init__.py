"""The verbs `generate` and `chat`, and what recipes for causal language models offer for `Recipe.inference`."""
