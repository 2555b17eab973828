"""Shape rules of layers, losses, optimizers and gradients."""
