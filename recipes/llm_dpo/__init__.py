"""Preference optimization of causal language models: DPO, IPO, KTO, ORPO, SimPO."""
