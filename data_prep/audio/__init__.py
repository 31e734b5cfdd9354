"""Reading, decoding, resampling and writing audio."""
