"""Turns lowered nodes into an ordered list of fused groups and library calls."""

from .scheduler import schedule
