"""Language models that speak in codec tokens, Orpheus first."""
