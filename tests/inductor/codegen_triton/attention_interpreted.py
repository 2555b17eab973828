"""Runs in a process of its own, in Triton's interpreter: random attention as one kernel, compared with eager.
Arguments: the first seed and the last. Prints failures, then "done"."""

from __future__ import annotations

import functools
import math
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

import interpreter
import torch
from torch.nn.attention.flex_attention import flex_attention

import stator
from stator.aot.trace import fused_attention
from stator.inductor.codegen import triton
from stator.inductor.schedule.groups import AttentionGroup, AttentionTile

launches: list[AttentionGroup] = []
FLOOR = 1e-6  # what the rounding of scores of 10 to float32 changes


def with_random_tiles(chance: random.Random) -> None:
    """All attention becomes a launch, and none ATen's call, on tiles that no rule would take."""
    fused_attention._pays = lambda *_: False

    def choose(group: AttentionGroup, **_: Any) -> AttentionTile:
        launches.append(group)
        if group.attention.tangent is not None:
            return AttentionTile(64, 64, 4, 1)
        parts = 1 if group.attention.causal else chance.choice((1, 1, 2, 5))
        return AttentionTile(chance.choice((16, 32)), chance.choice((16, 32, 64)), 4, 2, parts)

    triton.choose_attention = choose


class Case:
    """A function of random tensors: attention, with what comes before, between and behind."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        torch.manual_seed(seed)
        with_random_tiles(chance)
        self.dtype = chance.choice((torch.float16, torch.bfloat16, torch.float32))
        self.batch, self.heads = chance.choice((1, 2)), chance.choice((1, 4))
        self.rows, self.keys = chance.choice((1, 3, 16, 23, 49, 64)), chance.choice((16, 23, 49, 64, 80))
        if self.rows > 1 and chance.random() < 0.5:
            self.keys = self.rows
        self.depth, self.width = chance.choice((8, 16, 20, 32)), 16
        self.tensors: list[torch.Tensor] = []
        self.kinds: list[str] = []

    def tensor(self, *sizes: int, dtype: torch.dtype | None = None) -> int:
        self.tensors.append(torch.randn(*sizes).to(dtype or self.dtype))
        return len(self.tensors) - 1

    def pick(self, **kinds: Any) -> Any:
        kind = self.chance.choice(list(kinds))
        self.kinds.append(kind)
        return kinds[kind]

    def side(self, rows: int, width: int, heads: int) -> Callable[[list[torch.Tensor]], torch.Tensor]:
        """(batch, heads, rows, width), in one of the layouts that programs have."""
        kind = self.pick(heads="heads", rows="rows", packed="packed")
        if kind == "heads":
            at = self.tensor(self.batch, heads, rows, width)
            return lambda t: t[at]
        if kind == "rows":
            at = self.tensor(self.batch, rows, heads, width)
            return lambda t: t[at].transpose(1, 2)
        at = self.tensor(self.batch, rows, heads * width + 8)
        return lambda t: t[at][..., 8:].unflatten(-1, (heads, width)).transpose(1, 2)

    def function(self) -> Callable[..., torch.Tensor]:
        shared = self.chance.choice((1, 1, 2)) if self.heads > 1 else 1
        query = self.side(self.rows, self.depth, self.heads)
        key = self.side(self.keys, self.depth, self.heads // shared)
        value = self.side(self.keys, self.width, self.heads // shared)
        before, between, behind = self.before(), self.between(), self.behind()
        in_float = self.chance.random() < 0.5

        def repeat(x: torch.Tensor) -> torch.Tensor:
            return x if shared == 1 else x[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2)

        def compute(*tensors: torch.Tensor) -> torch.Tensor:
            t = list(tensors)
            q, k, v = before(query(t), t), repeat(key(t)), repeat(value(t))
            scores = between(q @ k.transpose(-1, -2), t)
            weights = (
                scores.float().softmax(-1).to(v.dtype) if in_float and v.dtype.itemsize < 8 else scores.softmax(-1)
            )
            return behind(weights @ v, t)

        return compute

    def before(self) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
        turns = self.tensor(self.rows, self.depth)

        def rotated(q: torch.Tensor, t: list[torch.Tensor]) -> torch.Tensor:
            first, second = q.chunk(2, -1)
            return q * t[turns].cos() + torch.cat((-second, first), -1) * t[turns].sin()

        return self.pick(nothing=lambda q, t: q, scaled=lambda q, t: q * self.depth**-0.5, rotated=rotated)

    def between(self) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
        keys, heads = self.tensor(self.batch, 1, 1, self.keys), self.tensor(self.heads, self.rows, self.keys)
        table = self.tensor(32, self.heads)
        half = self.keys // 2 if self.keys % 2 == 0 else 7 if self.keys == 49 else self.keys
        along, across = self.tensor(self.rows, half), self.tensor(self.rows, self.keys // half)
        distance = torch.arange(self.keys)[None] - torch.arange(self.rows)[:, None]
        self.tensors.append(distance.remainder(32))
        at = len(self.tensors) - 1

        def where(visible: Callable[[Any], Any], other: float) -> Any:
            def masked(s: torch.Tensor, t: list[torch.Tensor]) -> torch.Tensor:
                d = torch.arange(s.shape[-1])[None] - torch.arange(s.shape[-2])[:, None]
                return torch.where(visible(d), s, other)

            return masked

        return self.pick(
            nothing=lambda s, t: s,
            scale=lambda s, t: s / 3.0,
            keys=lambda s, t: s + torch.where(t[keys] > 0.7, -torch.inf, 0.0).to(s.dtype),
            smallest=lambda s, t: s.masked_fill(t[keys] > 0.7, torch.finfo(s.dtype).min),
            heads=lambda s, t: s * 0.25 + t[heads],
            table=lambda s, t: s + t[table][t[at]].permute(2, 0, 1),
            both=lambda s, t: torch.tanh(s / 5) * 5 + t[heads] + t[keys],
            planes=lambda s, t: (s.unflatten(-1, (half, -1)) + t[along][..., None] + t[across][:, None]).flatten(-2),
            slope=lambda s, t: s - torch.arange(self.keys).to(s.dtype) * 0.125,
            causal=where(lambda d: d <= 0, -math.inf),
            window=where(lambda d: (d <= 0) & (d > -7), -math.inf),
            # these rows see no key
            hidden=where(lambda d: d >= 3, -math.inf),
            even=where(lambda d: d >= 3, torch.finfo(self.dtype).min),
        )

    def behind(self) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
        other = self.tensor(self.batch, self.rows, self.heads * self.width)
        return self.pick(
            nothing=lambda y, t: y,
            heads=lambda y, t: y.transpose(1, 2).contiguous(),
            joined=lambda y, t: y.transpose(1, 2).flatten(2),
            residual=lambda y, t: y.transpose(1, 2).flatten(2) + t[other],
            activation=lambda y, t: torch.nn.functional.gelu(y).float(),
        )


def double(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [one.double() if one.is_floating_point() else one for one in tensors]


def compare(name: str, found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """The error is at most eager's, with something for chance, which decides about few elements. NaN is where float64
    has it: on CPUs, products of bfloat16 spread a NaN to the row above."""
    if not torch.equal(found.isnan(), exact.isnan()) or found.stride() != eager.stride():
        print(f"FAILED {name}: NaN in {int(found.isnan().sum())} places, {int(exact.isnan().sum())} in float64")
    norm = float(exact.nan_to_num().norm()) or 1.0
    errors = [float((one.double() - exact).nan_to_num().norm()) / norm for one in (found, eager)]
    if not errors[0] <= max((1.5 if exact.numel() >= 512 else 4) * errors[1], FLOOR):
        print(f"FAILED {name}: error {errors[0]}, eager's {errors[1]}")


def check(seed: int) -> None:
    case = Case(seed)
    function = case.function()
    shape = f"{case.batch} x {case.heads} x {case.rows} x {case.keys}, {case.depth}"
    name = f"seed {seed}: {case.dtype} {shape} {case.kinds}"
    launches.clear()
    stator.reset()
    try:
        found = stator.compile(function, options={"verify": True}, fullgraph=True)(*case.tensors)
    except Exception:
        print(f"FAILED {name}\n{traceback.format_exc(limit=-6)}")
        return
    compare(name, found, function(*case.tensors), function(*double(case.tensors)))
    if len(launches) != 1:
        print(f"FAILED {name}: {len(launches)} launches")


def attend(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


def sides(rows: int = 48, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [torch.randn(2, 3, rows, 16).to(dtype) for _ in range(3)]


def check_infinities() -> None:
    """Infinities and NaN in each side and in the bias make the rows NaN that they make NaN in eager."""
    for side in range(4):
        for value in (math.inf, -math.inf, math.nan):
            tensors = [*sides(), torch.zeros(48, 48).half()]
            tensors[side][..., 5, 3] = value
            stator.reset()
            found = stator.compile(attend)(*tensors)
            compare(f"{value} in {side}", found, attend(*tensors), attend(*double(tensors)))


def check_smallest_numbers() -> None:
    """Rows whose keys are all hidden by the smallest number attend to all keys alike."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        tensors = [*sides(dtype=dtype), torch.zeros(48, 48).to(dtype)]
        tensors[3][5], tensors[3][:, 20:] = torch.finfo(dtype).min, torch.finfo(dtype).min
        stator.reset()
        found = stator.compile(attend)(*tensors)
        compare(f"the smallest {dtype}", found, attend(*tensors), attend(*double(tensors)))
        average = tensors[2].double().mean(-2)
        torch.testing.assert_close(found[:, :, 5].double(), average, rtol=2e-2, atol=2e-2)


def check_flex() -> None:
    """Rows without a visible key are zero, by flex_attention's definition."""

    def cap(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        return torch.tanh(score / 2) * 2 + (key - row) * 0.0625

    def hidden(score: Any, batch: Any, head: Any, row: Any, key: Any) -> Any:
        return torch.where(row >= key + 3, score, -math.inf)

    for change in (cap, hidden):
        tensors = sides()
        launches.clear()
        stator.reset()
        function = lambda q, k, v: flex_attention(q, k, v, score_mod=change)  # noqa: E731
        found = stator.compile(function, fullgraph=True)(*tensors)
        compare(change.__name__, found, function(*tensors), function(*double(tensors)))
        if not launches or launches[0].attention.dtypes[0] is not torch.float16:
            print(f"FAILED {change.__name__}: {len(launches)} launches")


aten = torch.ops.aten


def efficient(q: Any, k: Any, v: Any, bias: Any) -> Any:
    attended = aten._scaled_dot_product_efficient_attention(q, k, v, bias, False, 0.0, False, scale=0.25)[0]
    return attended.transpose(1, 2).flatten(2)


def flash(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=0.25)[0] * 2


def cudnn(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, bias, False, 0.0, False, False, scale=0.25)[0]


def with_statistics(q: Any, k: Any, v: Any, bias: Any) -> Any:
    attended = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, False)
    return attended[0], attended[1]


def check_calls() -> None:
    """ATen's kernels for GPUs, which have no implementation here: compared with the plain formula."""
    for function in (efficient, flash, cudnn):
        q, k, v = [torch.randn(2, 48, 3, 16).half().transpose(1, 2) for _ in range(3)]
        bias = torch.randn(1, 3, 48, 48).half().expand(2, -1, -1, -1)
        bias = torch.where(torch.arange(48)[:, None] == 5, -torch.inf, bias)  # no key for the sixth row
        tensors = [q, k, v, bias]
        launches.clear()
        stator.reset()
        found = stator.compile(function, options={"verify": True}, fullgraph=True)(*tensors)
        mask = torch.ones(48, 48).tril().log() if function is flash else bias
        expected = attend(q.double(), k.double(), v.double(), mask.double()).nan_to_num()
        expected = {efficient: expected.transpose(1, 2).flatten(2), flash: expected * 2}.get(function, expected)
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)
        if len(launches) != 1:
            print(f"FAILED {function.__name__}: {len(launches)} launches")


def gradients(q: Any, k: Any, v: Any, bias: Any, g: Any, causal: bool, by_rows: bool) -> Any:
    whole = bias is not None and bias.shape[0] == q.shape[0]
    given = g, q, k, v, bias, whole, causal, 0.25, by_rows, by_rows
    found = torch.ops.stator.attention_gradients(*given)
    return found if whole else found[:3]


def gradients_by_formula(q: Any, k: Any, v: Any, bias: Any, g: Any, causal: bool, zeros: bool) -> list[torch.Tensor]:
    wanted = [one.double().requires_grad_() for one in (q, k, v, bias) if one is not None]
    with torch.enable_grad():
        key, value = [one.repeat_interleave(q.shape[1] // k.shape[1], 1) for one in wanted[1:3]]
        scores = wanted[0] @ key.transpose(-1, -2) * 0.25
        scores = scores if bias is None else scores + wanted[3]
        if causal:
            scores = scores + torch.ones(scores.shape[-2:]).tril().log()
        hidden = (scores == -math.inf).all(-1, keepdim=True) & zeros
        weights = torch.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0)
        return list(torch.autograd.grad(weights @ value, wanted, g.double()))


def check_gradients() -> None:
    """Gradients of ATen's kernels for GPUs, also of a bias, and of rows without a key."""
    for rows, keys, biased, causal, by_rows, shared in (
        (49, 49, (2, 6), False, True, 1),
        (64, 33, (2, 6), False, False, 3),
        (40, 64, None, False, True, 2),
        (64, 64, (1, 1), True, False, 1),
        (23, 23, (2, 6), True, True, 6),
        (17, 64, (1, 6), False, False, 1),
    ):
        for dtype, depth, width in ((torch.float16, 16, 16), (torch.bfloat16, 24, 32), (torch.float32, 8, 8)):
            q, k, v = [
                torch.randn(2, length, heads, size).to(dtype).transpose(1, 2)
                for length, size, heads in ((rows, depth, 6), (keys, depth, 6 // shared), (keys, width, 6 // shared))
            ]
            g = torch.randn(2, 6, rows, width).to(dtype)
            bias = torch.randn(*biased, rows, keys).to(dtype) if biased else None
            if bias is not None:
                bias[0, :, 5], bias[:, :, :, 7] = -math.inf, -math.inf
            launches.clear()
            stator.reset()
            function = functools.partial(gradients, causal=causal, by_rows=by_rows)
            call = stator.compile(function, options={"verify": True}, fullgraph=True)
            found, eager = call(q, k, v, bias, g), function(q, k, v, bias, g)
            expected = gradients_by_formula(q, k, v, bias, g, causal, by_rows)
            expected = expected[: len(found)]
            assert len(launches) == 1 and [one.stride() for one in found] == [one.stride() for one in eager]
            for one, other in zip((*found, *eager), (*expected, *expected), strict=True):
                if not torch.equal(one.isnan(), other.isnan()):
                    print(f"FAILED gradients {rows} x {keys} {dtype}: NaN in {int(one.isnan().sum())} places")
                error = float((one.double() - other).nan_to_num().norm()) / (float(other.nan_to_num().norm()) or 1.0)
                if not error < {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6}[dtype]:
                    print(f"FAILED gradients {rows} x {keys} {dtype}: error {error}")


def shown(q: Any, k: Any, v: Any, bias: Any) -> Any:
    weights = torch.softmax(q @ k.transpose(-1, -2) + bias, -1)
    return weights @ v, weights


def scores_shown(q: Any, k: Any, v: Any, bias: Any) -> Any:
    scores = q @ k.transpose(-1, -2) + bias
    return torch.softmax(scores, -1) @ v, scores


def along_rows(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) + bias, -2) @ v


def turned(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) + bias, -1).transpose(-1, -2) @ v


def squared(q: Any, k: Any, v: Any, bias: Any) -> Any:
    weights = torch.softmax(q @ k.transpose(-1, -2) + bias, -1)
    return (weights * weights) @ v


def check_what_stays() -> None:
    """Values that others read are computed as before."""
    for function in (shown, scores_shown, along_rows, turned, squared):
        tensors = [*sides(), torch.randn(48, 48).half()]
        launches.clear()
        stator.reset()
        found = stator.compile(function, options={"verify": True}, fullgraph=True)(*tensors)
        expected = function(*tensors)
        torch.testing.assert_close(found, expected, rtol=4e-3, atol=4e-3)
        if launches:
            print(f"FAILED {function.__name__} became a launch")


def values_in_place(q: Any, k: Any, v: Any, bias: Any) -> Any:
    v.copy_(attend(q, k, v, bias))
    return v + 1


def queries_in_place(q: Any, k: Any, v: Any, bias: Any) -> Any:
    scaled = q * 0.5
    scores = scaled @ k.transpose(-1, -2)
    q.add_(1.0)
    result = torch.softmax(scores + bias, -1) @ v
    bias.zero_()
    return result + q


def check_mutations() -> None:
    """Programs that write where attention still reads."""
    for function in (values_in_place, queries_in_place):
        tensors = [*sides(), torch.randn(48, 48).half()]
        mine, exact = [one.clone() for one in tensors], double(tensors)
        stator.reset()
        found = stator.compile(function, options={"verify": True}, fullgraph=True)(*mine)
        eager = function(*tensors)
        for a, b, c in zip([found, *mine], [eager, *tensors], [function(*exact), *exact], strict=True):
            compare(function.__name__, a, b, c)


def check_sizes() -> None:
    """One compilation for all lengths."""
    launches.clear()
    stator.reset()
    function = stator.compile(attend)
    for rows in (33, 48, 17, 64):
        tensors = [*sides(rows), torch.randn(rows, rows).half()]
        for tensor, dims in zip(tensors, ((2,), (2,), (2,), (0, 1)), strict=True):
            stator.mark_dynamic(tensor, dims)
        compare(f"{rows} rows", function(*tensors), attend(*tensors), attend(*double(tensors)))
    if len(launches) != 1:
        print(f"FAILED {len(launches)} launches for all sizes")


def main() -> None:
    assert interpreter.launches == 0
    with torch.no_grad():
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            check(seed)
        if sys.argv[1] == "0":
            with_random_tiles(random.Random(0))
            check_infinities()
            check_smallest_numbers()
            check_flex()
            check_calls()
            check_gradients()
            check_what_stays()
            check_mutations()
            check_sizes()
    print("done")


if __name__ == "__main__":
    main()
