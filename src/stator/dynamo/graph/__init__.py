"""The FX graph of a capture while it is built."""
