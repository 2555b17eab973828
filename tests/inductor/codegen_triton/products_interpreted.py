"""Runs in a process of its own, in Triton's interpreter: random matrix products with what follows them, as one kernel,
compared with eager. Arguments: the first seed and the last. Prints failures, then "done"."""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import interpreter  # noqa: F401 - before anything loads Triton
import torch

import stator
from stator import pipeline
from stator.inductor.codegen import triton
from stator.inductor.schedule.groups import ProductGroup, Tile

# Relative to the norm of a result, which has the rounding of its dtype and of one more value before it
TOLERANCES = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
launches: list[ProductGroup] = []


def may_loop(group: ProductGroup) -> bool:
    return len(group.products.parts) == 1 and group.products.ends is None


def with_random_tiles(chance: random.Random) -> None:
    """Every product becomes a launch, on tiles that no rule would take."""

    def choose(group: ProductGroup, may_share_depth: bool, **_: Any) -> Tile:
        launches.append(group)
        depth = chance.choice((16, 32, 64))
        split = 1
        if may_share_depth and isinstance(group.products.depth, int) and group.products.depth % 2 == 0:
            split = chance.choice((1, 2))
        programs = chance.choice((0, 1, 3)) if may_loop(group) else 0
        return Tile(chance.choice((16, 32)), chance.choice((16, 32, 64)), depth, 4, 2, split, programs)

    triton.choose_tile = choose


class Case:
    """A function of random tensors: products, and what follows them."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        torch.manual_seed(seed)
        with_random_tiles(chance)
        self.dtype = chance.choice((torch.float16, torch.bfloat16))
        self.rows, self.depth = chance.choice((1, 2, 7, 16, 33, 48, 150)), chance.choice((8, 16, 30, 64, 96))
        self.columns = chance.choice((4, 12, 16, 40, 64))
        self.batch = chance.choice((0, 0, 0, 2, 3))
        self.tensors: list[torch.Tensor] = []
        self.steps: list[str] = []

    def tensor(self, *sizes: int) -> int:
        self.tensors.append((torch.randn(*sizes) * 0.5).to(self.dtype))
        return len(self.tensors) - 1

    def side(self, rows: int, columns: int) -> Callable[[list[torch.Tensor]], torch.Tensor]:
        """A matrix, or a batch of them: as it is, transposed, or with gaps between rows."""
        first = (self.batch,) if self.batch else ()
        kind = self.chance.choice(("plain", "transposed", "gaps"))
        self.steps.append(kind)
        if kind == "transposed":
            at = self.tensor(*first, columns, rows)
            return lambda tensors: tensors[at].transpose(-1, -2)
        if kind == "gaps":
            at = self.tensor(*first, rows, columns + 8)
            return lambda tensors: tensors[at][..., 4:-4]
        at = self.tensor(*first, rows, columns)
        return lambda tensors: tensors[at]

    def function(self) -> Callable[..., Any]:
        left = self.side(self.rows, self.depth)
        members = []
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            columns = self.chance.choice((self.columns, self.columns, 20))
            members.append((self.side(self.depth, columns), self.follower(columns)))

        def compute(*tensors: torch.Tensor) -> Any:
            given = list(tensors)
            return tuple([follow(left(given) @ right(given), given) for right, follow in members])

        return compute

    def follower(self, columns: int) -> Callable[[torch.Tensor, list[torch.Tensor]], Any]:
        first = (self.batch,) if self.batch else ()
        bias, other = self.tensor(columns), self.tensor(*first, self.rows, columns)
        scale = self.tensor(self.rows, 1)
        weight = self.tensor(*first, self.depth, columns)
        kinds: dict[str, Callable[[torch.Tensor, list[torch.Tensor]], Any]] = {
            "nothing": lambda y, t: y,
            "bias": lambda y, t: y + t[bias],
            "gelu": lambda y, t: torch.nn.functional.gelu(y + t[bias]),
            "residual": lambda y, t: torch.relu(y) + t[other],
            "both": lambda y, t: (y, torch.tanh(y)),
            "rows": lambda y, t: y * t[scale],
            "float": lambda y, t: y.float() * 2 - t[other],
            "heads": lambda y, t: (y.unflatten(-1, (-1, 4)).transpose(-2, -3) * 2).contiguous(),
            "transposed": lambda y, t: (y + 1).transpose(-1, -2).contiguous(),
            "condition": lambda y, t: torch.where(t[other] > 0, y, -y),
            "sum": lambda y, t: (y.float() * t[other]).sum(-1),
            "two products": lambda y, t: torch.sigmoid(y) * (t[other] @ t[weight].transpose(-1, -2) @ t[weight]),
            "norm": lambda y, t: torch.softmax(y.float() + t[other], -1),
        }
        kind = self.chance.choice(list(kinds))
        self.steps.append(kind)
        return kinds[kind]


def flat(values: Any) -> list[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else [leaf for value in values for leaf in flat(value)]


def check(seed: int) -> None:
    case = Case(seed)
    function = case.function()
    name = f"seed {seed}: {case.dtype} {case.batch} x {case.rows} x {case.columns} x {case.depth} {case.steps}"
    launches.clear()
    stator.reset()
    try:
        found = flat(stator.compile(function, options={"verify": True}, fullgraph=True)(*case.tensors))
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc(limit=-6)}")
        return
    exact = flat(function(*[tensor.double() for tensor in case.tensors]))
    for expected, result in zip(exact, found, strict=True):
        error = float((result.double() - expected).norm() / expected.norm().clamp(min=1e-3))
        if not error < 2 * TOLERANCES[case.dtype] or result.shape != expected.shape:
            print(f"FAILED {name}: {error}")
    if not launches:
        print(f"FAILED {name}: no launch")


def check_sizes() -> None:
    """One compilation for all numbers of rows."""
    weight, bias = torch.randn(40, 24).half() * 0.3, torch.randn(40).half()
    function = stator.compile(lambda x: torch.relu(torch.nn.functional.linear(x, weight, bias)), dynamic=True)
    for rows in (5, 17, 64, 33):
        x = torch.randn(rows, 24).half()
        exact = torch.relu(torch.nn.functional.linear(x.double(), weight.double(), bias.double()))
        error = float((function(x).double() - exact).norm() / exact.norm())
        if not error < TOLERANCES[torch.float16]:
            print(f"FAILED {rows} rows of one kernel: {error}")


def residual_in_place(x: Any, kept: Any, one: Any, other: Any) -> Any:
    first = x @ one + kept
    kept.add_(x @ other)
    return first, torch.relu(kept)


def side_in_place(x: Any, kept: Any, one: Any, other: Any) -> Any:
    x.copy_(torch.relu(x @ one))
    return x @ other, torch.tanh(x @ one) + kept


def side_after_its_reader(x: Any, kept: Any, one: Any, other: Any) -> Any:
    first = torch.relu(x @ one)
    x.mul_(x @ other)
    return first + kept


def result_behind_itself(x: Any, kept: Any, one: Any, other: Any) -> Any:
    kept.copy_((kept.t() + x @ one) * (x @ other))
    return kept @ one


def check_mutations() -> None:
    """Programs that write where others still read."""
    for function in (residual_in_place, side_in_place, side_after_its_reader, result_behind_itself):
        for seed in range(3):
            with_random_tiles(random.Random(seed))
            tensors = [torch.randn(48, 48).mul(0.3).half() for _ in range(4)]
            exact = [tensor.double() for tensor in tensors]
            launches.clear()
            stator.reset()
            found = stator.compile(function, options={"verify": True}, fullgraph=True)(*tensors)
            expected = function(*exact)
            for result, one in zip([*flat(found), *tensors], [*flat(expected), *exact], strict=True):
                error = float((result.double() - one).norm() / one.norm())
                if not error < 3 * TOLERANCES[torch.float16]:
                    print(f"FAILED {function.__name__}: {error}")
            if not launches:
                print(f"FAILED {function.__name__}: no launch")


def check_gradients() -> None:
    """Training steps, with products of gradients. Graphs of smaller tensors would be left to eager."""
    for seed in range(3):
        with_random_tiles(random.Random(seed))
        torch.manual_seed(seed)
        x, up, bias, down = [torch.randn(*sizes) * 0.3 for sizes in ((133, 96), (140, 96), (140,), (96, 140))]

        def step(x: Any, up: Any, bias: Any, down: Any) -> Any:
            hidden = torch.nn.functional.gelu(torch.nn.functional.linear(x, up, bias))
            return torch.nn.functional.linear(hidden, down) + x

        def gradients(function: Any, dtype: torch.dtype) -> list[torch.Tensor]:
            given = [tensor.half().to(dtype).requires_grad_() for tensor in (x, up, bias, down)]
            result = function(*given)
            return [result, *torch.autograd.grad(result.double().square().sum(), given)]

        launches.clear()
        stator.reset()
        with torch.enable_grad():
            found = gradients(stator.compile(step, options={"verify": True}), torch.float16)
            exact = gradients(step, torch.float64)
        errors = [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True)]
        if not max(errors) < 3 * TOLERANCES[torch.float16] or len(launches) < 4:
            print(f"FAILED gradients: {errors}, {len(launches)} launches")


def main() -> None:
    with torch.no_grad():
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            check(seed)
        stator.reset()
        check_mutations()
        check_gradients()
        stator.reset()
        launches.clear()
        check_sizes()
    if len(launches) != 1:
        print(f"FAILED {len(launches)} launches for all sizes")
    print("done")


assert pipeline.triton is triton
if __name__ == "__main__":
    main()
