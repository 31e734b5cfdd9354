"""Library for speech recipes: the `Voice` protocol, evaluation, serving. It is not a recipe."""
