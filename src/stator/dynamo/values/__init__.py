"""What the symbolic interpreter holds: one file for each kind of value."""
