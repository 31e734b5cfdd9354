"""`make demo`: a small trained model learns a new voice on a CPU."""
