"""The exported model folder and its card."""
