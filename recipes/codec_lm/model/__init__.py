"""Rows, speakers and sampling of the models."""
