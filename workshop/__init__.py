"""The workshop beside the product: how the demo models are made, benchmarks, mutants, the laboratory book. It is not installed; it imports
`overtone` and `tests`, and nothing of `overtone` imports it."""
