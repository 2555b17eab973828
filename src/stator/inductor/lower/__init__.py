"""Lowers ATen graphs to buffers: the entry point `lower`, and the registry of lowerings. Importing registers them."""

from . import operators as operators  # isort: skip  # exact lowerings are made from the lowerings that it registers
from .builder import LoweringBuilder
from .graph import lower
from .operators.pointwise import cast, elementwise
from .operators.reductions import reduce
from .printer import print_lowered
from .registry import can_lower, lowerings
from .tensor import Tensor
from .verifier import verify_lowered
