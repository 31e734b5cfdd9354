"""How good a voice is: intelligibility (WER), speaker similarity, audio measures, and the results page."""
