"""Compiled versions of frames: lookup, recompilation, limits, and the fallback for graphs that fail."""
