"""How long a loop is followed that makes no graph: it runs as quickly by itself, and following it would take a thousand
times as long."""

from __future__ import annotations

from .values.base import unsupported

_MOST_TURNS = 20_000
_MOST_INSTRUCTIONS = 500_000


class LoopLimit:
    """Counts the turns of loops since the graph grew."""

    def __init__(self) -> None:
        self._operations = 0
        self._turns = 0
        self._since = 0  # instructions that were followed when the graph grew

    def count_turn(self, operations: int, instructions: int) -> None:
        """A jump backwards, with so many operations in the graph and instructions followed. Raises Unsupported."""
        if operations != self._operations:
            self._operations, self._turns, self._since = operations, 0, instructions
        self._turns += 1
        self._since = min(self._since, instructions)
        if self._turns > _MOST_TURNS:
            raise unsupported("long-loop", f"more than {_MOST_TURNS} turns of loops without an operation on tensors")
        if instructions - self._since > _MOST_INSTRUCTIONS:
            raise unsupported("long-loop", f"{_MOST_INSTRUCTIONS} instructions without an operation on tensors")
