"""What a compiled version relies on: sources, guards on them, and the C guard tree that checks them."""
