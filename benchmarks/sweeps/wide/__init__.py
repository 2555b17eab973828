"""Models of many libraries and programs written by hand: one builder for each family, registered by `family.py`."""
