"""Training of causal language models by rewards for their own answers: GRPO, Dr. GRPO, DAPO."""
