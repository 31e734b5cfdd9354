"""The csm recipe: fine-tunes Sesame CSM-1B on one or more voices."""
