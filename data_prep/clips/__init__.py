"""Clips: extraction, loudness, measurements, quality rules, duplicates, speaker similarity, review decisions."""
