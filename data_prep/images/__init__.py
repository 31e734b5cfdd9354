"""Labelled images: reading, checking, finding duplicates, splitting and reporting."""
