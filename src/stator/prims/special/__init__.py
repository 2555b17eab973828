"""Special functions as formulas, and their coefficients."""
