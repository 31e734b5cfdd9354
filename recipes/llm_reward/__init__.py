"""Reward models and text classifiers: causal language models with a head that returns values of a whole sequence."""
