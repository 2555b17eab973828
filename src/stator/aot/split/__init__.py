"""Graphs that are compiled in several pieces."""
