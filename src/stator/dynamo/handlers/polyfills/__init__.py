"""Functions written in C, rewritten as plain Python so that they can be traced. Importing this package registers them.

Every function here means exactly what the one it replaces means; tests compare the two.
"""

from . import itertools_module, searches_and_heaps, torch_optim, transformer_encoder
