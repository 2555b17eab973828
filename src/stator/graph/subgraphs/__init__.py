"""Graphs inside graphs: what a node calls that runs another graph."""
