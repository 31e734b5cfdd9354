"""Library for speech recipes: the `Voice` protocol, speakers and their data, model cards, decoding, verbs, evaluation, serving. It is not a
recipe."""
