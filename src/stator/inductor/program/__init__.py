"""Turns a schedule into a program: an ordered list of allocations, kernel launches and library calls."""

from .buffer_reuse import reuse_dead_memory
from .input_writes import write_inputs
from .order import order_for_memory
from .peak import predict_growth, predict_peak, scratch_bytes
from .plan import plan
from .printer import print_program
from .verifier import verify_program
