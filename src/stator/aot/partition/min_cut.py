"""Minimum cuts of directed graphs with integer capacities, by Dinic's algorithm.

Y. Dinitz, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970. Written out
because this takes some 10 ms for ResNet-50, where networkx takes 50 (Boykov-Kolmogorov) to 350 (its default), and the
time to import it.
"""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 80


class FlowNetwork:
    """Vertices are numbers given by `vertex`; 0 is the source and 1 the sink."""

    __slots__ = ("capacities", "edges", "heads")

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self.edges: list[list[int]] = [[], []]  # per vertex: numbers of the edges that leave it
        self.heads: list[int] = []  # per edge; edge n ^ 1 is the reverse of edge n
        self.capacities: list[int] = []  # residual capacity per edge

    def vertex(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        if capacity <= 0:
            return
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.capacities += (capacity, 0)

    def sink_side(self) -> list[bool]:
        """Saturate the network; per vertex, whether it lies on the sink's side of the minimum cut next to the sink.
        Raises ValueError when every cut is infinite."""
        while (levels := self._levels()) is not None:
            self._augment(levels)
        return self._reaches_sink()

    def _levels(self) -> list[int] | None:
        """Distances to the sink in the residual network; None when the source cannot reach it. Paths that follow these
        never leave what leads to the sink."""
        levels = [-1] * len(self.edges)
        levels[self.SINK] = 0
        waiting = deque((self.SINK,))
        edges, heads, capacities = self.edges, self.heads, self.capacities
        while waiting:
            head = waiting.popleft()
            next_level = levels[head] + 1
            for edge in edges[head]:
                tail = heads[edge]
                if levels[tail] < 0 and capacities[edge ^ 1]:
                    levels[tail] = next_level
                    waiting.append(tail)
        return levels if levels[self.SOURCE] >= 0 else None

    def _augment(self, levels: list[int]) -> None:
        """Push flow along shortest paths until each has a saturated edge. Each path begins with the part of the one
        before that is not saturated."""
        heads, capacities = self.heads, self.capacities
        positions = [0] * len(self.edges)  # per vertex: the first of its edges that may still lead on
        path: list[int] = []
        at = self.SOURCE
        while True:
            leaving, wanted = self.edges[at], levels[at] - 1
            position = positions[at]
            while position < len(leaving):
                edge = leaving[position]
                if capacities[edge] and levels[heads[edge]] == wanted:
                    break
                position += 1
            positions[at] = position
            if position < len(leaving):
                path.append(edge)
                at = heads[edge]
                if at == self.SINK:
                    at = self._push(path)
            elif path:
                at = heads[path.pop() ^ 1]
                positions[at] += 1
            else:
                return

    def _push(self, path: list[int]) -> int:
        """Saturate a path to the sink, and cut it in front of its first saturated edge. Returns the vertex there."""
        heads, capacities = self.heads, self.capacities
        least = min([capacities[edge] for edge in path])
        if least >= INFINITE:
            raise ValueError("there is a path of infinite capacity from source to sink")
        for edge in path:
            if capacities[edge] < INFINITE:
                capacities[edge] -= least
            if capacities[edge ^ 1] < INFINITE:
                capacities[edge ^ 1] += least
        full = next(place for place, edge in enumerate(path) if not capacities[edge])
        at = heads[path[full] ^ 1]
        del path[full:]
        return at

    def _reaches_sink(self) -> list[bool]:
        reaches = [False] * len(self.edges)
        reaches[self.SINK] = True
        waiting = [self.SINK]
        while waiting:
            head = waiting.pop()
            for edge in self.edges[head]:
                tail = self.heads[edge]
                if not reaches[tail] and self.capacities[edge ^ 1]:
                    reaches[tail] = True
                    waiting.append(tail)
        return reaches
