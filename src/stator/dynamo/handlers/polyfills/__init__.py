"""Functions written in C, rewritten as plain Python so that they can be traced. Importing this package registers them.

Every function here means exactly what the one it replaces means; tests compare the two.
"""

from . import bisect_module, heapq_module, itertools_module, torch_optim, transformer_encoder
