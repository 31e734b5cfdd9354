"""Verbs that speech recipes share."""
