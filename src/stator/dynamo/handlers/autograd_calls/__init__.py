"""Handlers of calls into autograd: the engine, custom functions, transforms, hooks, checkpoints."""
