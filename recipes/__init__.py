"""One folder per recipe. `finetune/recipe/contract.py` defines what a recipe provides."""
