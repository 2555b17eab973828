"""Running a program on fake tensors and keeping what it does as a graph."""
