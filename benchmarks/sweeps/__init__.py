"""Sweeps over every architecture of transformers, every family of timm, and programs of many other libraries.

`python -m benchmarks.sweeps.run transformers` measures, `python -m benchmarks.sweeps.table` makes the page in docs/.
"""
