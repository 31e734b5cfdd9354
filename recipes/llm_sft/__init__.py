"""Supervised fine-tuning of any causal language model of transformers."""
