"""Running a program on fake tensors and recording its operators as a graph."""
