"""Library for recipes of causal language models: tokenization, modeling, collation, loss, export, serving. It is not a recipe."""
