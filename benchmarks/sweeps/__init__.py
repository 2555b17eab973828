"""Sweeps over every architecture of transformers and every family of timm: captured by stator, and by torch.compile.

`python -m benchmarks.sweeps.run transformers` measures, `python -m benchmarks.sweeps.table` makes the page in docs/.
"""
