"""Operators of a graph that run other graphs: branches, loops, custom autograd functions, function transforms."""
