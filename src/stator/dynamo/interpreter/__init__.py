"""The symbolic interpreter: frames, calls, wrapping of real objects, and reconstruction at the end of a graph."""
