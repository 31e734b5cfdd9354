"""The verbs of `python -m data_prep VERB`, one module each; `data_prep/__main__.py` alone imports them."""
