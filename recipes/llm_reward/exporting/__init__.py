"""The files of an export."""
