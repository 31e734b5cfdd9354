"""Evaluation of a voice: intelligibility (WER), speaker similarity, audio measures, and the results page."""
