"""From a graph of torch calls to functional graphs: analysis of inputs, forward and joint tracing."""
