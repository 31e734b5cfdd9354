"""The verbs of runs and models, one module each; `finetune/__main__.py` alone imports them."""
