"""Checkpoints: sharded safetensors, their metadata, remote copies, the run lock, disk space."""
