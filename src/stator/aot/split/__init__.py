"""Graphs that are compiled in several parts."""
