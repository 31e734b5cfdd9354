"""Neural audio codecs and speaker encoders that turn clips into codes and embeddings."""
