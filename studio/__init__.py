"""The studio: one local web page for the whole way from data to a model. It starts verbs of the command line as jobs.

It may import every other package; none imports it.
"""
