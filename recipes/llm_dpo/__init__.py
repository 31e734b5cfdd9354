"""Preference optimization of causal language models: DPO, IPO, ORPO, SimPO."""
