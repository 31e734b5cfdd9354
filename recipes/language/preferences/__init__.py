"""Rows of answers with preferences, for the recipes that learn from comparisons: llm_dpo and llm_reward."""
