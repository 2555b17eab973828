"""Compiled versions of frames: lookup, recompilation, limits, and falling back when a graph fails."""
