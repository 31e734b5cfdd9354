"""One folder per recipe; what a recipe must offer stands in `finetune/recipe.py`."""
