"""Minimum cuts, compared with networkx on random graphs."""

from __future__ import annotations

import random

import networkx
import pytest

from stator.aot.partition.min_cut import INFINITE, FlowNetwork


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_is_minimal(seed: int) -> None:
    choose = random.Random(seed)
    count = choose.randint(2, 30)
    network, reference = FlowNetwork(), networkx.DiGraph()
    for _ in range(count - 2):
        network.vertex()
    reference.add_nodes_from(range(count))
    edges: dict[tuple[int, int], int] = {}
    for _ in range(choose.randint(1, 120)):
        tail, head = choose.randrange(count), choose.randrange(count)
        if tail != head and (tail, head) not in edges:
            edges[tail, head] = choose.randint(1, 9) if choose.random() < 0.9 else 10**6
    for (tail, head), capacity in edges.items():
        network.edge(tail, head, capacity)
        reference.add_edge(tail, head, capacity=capacity)
    side = network.sink_side()
    crossing = sum(capacity for (tail, head), capacity in edges.items() if not side[tail] and side[head])
    assert not side[0] and side[1]
    assert crossing == networkx.maximum_flow_value(reference, 0, 1)


def test_the_cut_next_to_the_sink_is_chosen() -> None:
    network = FlowNetwork()
    first, second = network.vertex(), network.vertex()
    network.edge(0, first, 3)
    network.edge(first, second, 3)
    network.edge(second, 1, 3)
    assert network.sink_side() == [False, True, False, False]


def test_what_cannot_be_cut_is_an_error() -> None:
    network = FlowNetwork()
    middle = network.vertex()
    network.edge(0, middle, INFINITE)
    network.edge(middle, 1, INFINITE)
    with pytest.raises(ValueError, match="infinite"):
        network.sink_side()
