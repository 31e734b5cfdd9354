"""The verbs of datasets, one module each; `data_prep/__main__.py` alone imports them."""
