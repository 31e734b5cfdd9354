"""Preference optimization of Qwen3-TTS voices: DPO, IPO, ORPO, SimPO on pairs of spoken clips."""
