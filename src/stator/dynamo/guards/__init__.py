"""The assumptions of a compiled version: sources, guards on them, and the C guard tree that checks them."""
