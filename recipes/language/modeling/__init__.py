"""Causal language models of transformers as Overtone trains them: attention over packed rows, the loss head, and checks of both."""
