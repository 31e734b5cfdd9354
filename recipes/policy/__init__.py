"""Policy optimization by rewards, for any model that scores its own outputs: options, objectives, samples and terms of the loss."""
