"""collections.deque in captured code, compared with eager: made in the frame, and from outside."""

from __future__ import annotations

import collections
import random
from collections import deque
from typing import Any

import pytest
import torch

import stator

TENSOR = torch.arange(3.0)

OPERATIONS = [
    "q.append(x)", "q.appendleft(3)", "q.extend([x + 1, 2])", "q.extendleft((4, 5))", "q.pop()", "q.popleft()",
    "q.insert(1, 7)", "q.insert(-1, 8)", "q.rotate()", "q.rotate(-2)", "q.reverse()", "q.remove(3)", "q[0] = 6",
    "q[-1] = x", "del q[1]", "q.clear()", "q.extend(q)", "seen.append(len(q))", "seen.append(list(q))",
    "seen.append(3 in q)", "seen.append(q.count(3))", "seen.append(list(reversed(q)))", "seen.append(bool(q))",
    "seen.append(q[1])", "seen.append(q.copy())",
    "q = deque(q, 3)", "q = deque(q)", "seen.append(q.maxlen)", "q[9] = 1",
    "q.append(q.popleft())", "for item in q: seen.append(item)", "for item in q: q.append(1)",
    "it = iter(q); seen.append(next(it))",
]  # fmt: skip


def program_of(chosen: list[str], made_inside: bool, breaks: bool) -> Any:
    lines = ["def program(x, q):", "    seen = []"]
    if made_inside:
        lines.append("    q = deque([1, x, 3], 4)")
    for at, operation in enumerate(chosen):
        if breaks and at == len(chosen) // 2:
            lines.append("    torch._dynamo.graph_break()")
        lines += ["    try:", f"        {operation}", "    except (IndexError, RuntimeError, ValueError) as error:"]
        lines += ["        seen.append(type(error))"]
    lines += ["    return x * 2, q, seen"]
    namespace: dict[str, Any] = {"deque": deque, "torch": torch}
    exec("\n".join(lines), namespace)
    return namespace["program"]


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, deque):
        return ("deque", [shown(item) for item in value], value.maxlen)
    return [shown(item) for item in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize("seed", range(40))
def test_random_operations(seed: int) -> None:
    choose = random.Random(seed)
    chosen = choose.choices(OPERATIONS, k=6)
    program = program_of(chosen, made_inside=seed % 4 == 0, breaks=seed % 3 == 0)
    compiled = stator.compile(program, backend="eager")
    mine, own = (deque([1, TENSOR, 3, 9], choose.choice([None, 4])) for _ in range(2))
    own = deque(own, mine.maxlen)
    for _ in range(3):
        expected, found = program(TENSOR, own), compiled(TENSOR, mine)
        assert shown(found) == shown(expected), chosen
        assert shown(mine) == shown(own), chosen
        assert (found[1] is mine) == (expected[1] is own)


def test_a_history_of_a_module_is_one_graph() -> None:
    class History(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frames: deque[torch.Tensor] = deque(maxlen=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.frames.append(x)
            return torch.stack(list(self.frames)).sum(0)

    module, plain = History(), History()
    compiled = stator.compile(module, fullgraph=True)
    for step in range(8):
        x = torch.full((2,), float(step))
        assert torch.equal(compiled(x), plain(x))
        assert module.frames[-1] is x
    assert len(module.frames) == 3 and module.frames.maxlen == 3


def test_a_search_in_breadth() -> None:
    edges = {0: [1, 2], 1: [3], 2: [3, 4], 3: [], 4: [0]}

    def program(x: torch.Tensor) -> torch.Tensor:
        queue, seen = deque([0]), {0}
        while queue:
            node = queue.popleft()
            x = x * 2 + node
            for follower in edges[node]:
                if follower not in seen:
                    seen.add(follower)
                    queue.append(follower)
        return x

    assert torch.equal(stator.compile(program, fullgraph=True)(TENSOR), program(TENSOR))


def test_appending_to_a_growing_deque_compiles_once() -> None:
    seen: deque[Any] = collections.deque()
    compiled = stator.compile(lambda x: seen.append(x + 1), backend="eager", fullgraph=True)
    compiled(TENSOR)
    with stator.assert_no_recompile():
        for _ in range(5):
            compiled(TENSOR)
    assert len(seen) == 6


def test_a_deque_that_holds_itself() -> None:
    def program(x: torch.Tensor) -> Any:
        made = deque([x + 1])
        made.append(made)  # type: ignore[arg-type]
        return made

    made = stator.compile(program, backend="eager", fullgraph=True)(TENSOR)
    assert made[1] is made and torch.equal(made[0], TENSOR + 1)
