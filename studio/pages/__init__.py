"""Pages of the studio: one module and one template for each. `studio/page_list.py` lists them."""
