"""The verbs of `python -m finetune VERB`, one module each; `finetune/__main__.py` alone imports them."""
