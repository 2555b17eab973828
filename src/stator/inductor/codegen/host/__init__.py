"""Programs to Python source, and that source to a callable."""

from .load import execute, load
from .printer import HostSource, print_host

__all__ = ["HostSource", "execute", "load", "print_host"]
