"""The files of an export and its model card."""
