"""What speech recipes share: the `Voice` protocol, evaluation, serving. No recipe itself."""
