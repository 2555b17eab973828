"""Limits on following loops and calls that add nothing to the graph: such code runs as fast natively, and following it
takes a thousand times as long."""

from __future__ import annotations

from collections.abc import Iterator

from stator.dynamo.values.base import Value, unsupported

_MOST_TURNS = 20_000
_MOST_INSTRUCTIONS = 200_000
_MOST_ITEMS = 200_000


class LoopLimit:
    """Counts loop iterations and instructions since the graph last grew."""

    def __init__(self) -> None:
        self._operations = 0
        self._turns = 0
        self._since = 0  # instructions followed when the graph last grew

    def count_turn(self, operations: int, instructions: int) -> None:
        """Count a backward jump. `operations` in the graph and `instructions` followed are totals."""
        self.count_call(operations, instructions)
        self._turns += 1
        if self._turns > _MOST_TURNS:
            raise unsupported("long-loop", f"more than {_MOST_TURNS} turns of loops without an operation on tensors")

    def count_call(self, operations: int, instructions: int) -> None:
        """Count an inlined call."""
        if operations != self._operations:
            self._operations, self._turns, self._since = operations, 0, instructions
        self._since = min(self._since, instructions)
        if instructions - self._since > _MOST_INSTRUCTIONS:
            raise unsupported("long-loop", f"{_MOST_INSTRUCTIONS} instructions without an operation on tensors")


def counted(items: Iterator[Value]) -> Iterator[Value]:
    """The items, for a C function that takes them one by one. Raises Unsupported if there are very many."""
    for at, item in enumerate(items):
        if at == _MOST_ITEMS:
            raise unsupported(
                "iteration", f"taking more than {_MOST_ITEMS} items, which the interpreter does by itself"
            )
        yield item
