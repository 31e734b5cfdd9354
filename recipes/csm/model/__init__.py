"""CSM for training: the model, its sequence layout, its configs, the speakers of a dataset."""
