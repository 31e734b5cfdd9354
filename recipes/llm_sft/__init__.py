"""Supervised fine-tuning of causal language models of transformers."""
