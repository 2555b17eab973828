"""Handlers of calls into torch.optim."""
