"""Graphs of torch calls become functional graphs: forward graphs, and joint graphs of forward and backward."""
