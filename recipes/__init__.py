"""One folder per recipe. `finetune/recipe.py` defines what a recipe provides."""
