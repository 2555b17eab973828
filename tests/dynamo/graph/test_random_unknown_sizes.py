"""Random programs on tensors whose sizes depend on data: results, layouts, writes to inputs and errors are eager's.

Compared in float64 to 1e-9 relative. Each program runs on data that select many, some, one and no elements.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import significant_strides

import stator

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of versions and of graphs that are given up

LENGTH = 7  # statements of a program
# What may be done with a tensor `{a}` of rows, a vector `{v}` or a number `{n}`; each makes another of its kind.
STATEMENTS = {
    "rows": [
        "{a}[{a}.sum(1) > 0]", "{a}[{v}[:1] > 0].sin() if False else {a} * 2", "torch.cat([{a}, {a}])", "{a}[:{n}]",
        "{a}[{a}[:, 0] > {a}[:, 1]] + 1", "{a}.flip(0)", "{a}.t().contiguous().t()", "torch.softmax({a}, -1)",
        "{a} + {a}.sum(0)", "torch.repeat_interleave({a}, ({a}[:, 0] > 0).int() + 1, dim=0)", "{a}.reshape(-1, 3)",
        "{a}.clone().mul_(2)", "torch.zeros({n}, 3, dtype=torch.float64)", "{a} @ torch.eye(3, dtype=torch.float64)",
        "torch.unique({a}, dim=0)", "{a}.expand(-1, 3)", "{a}.view(-1).view(-1, 3)", "{a}.masked_fill({a} > 1, 0.5)",
        "torch.stack([{a}, {a}]).mean(0)", "torch.nn.functional.pad({a}, (0, 0, 1, 1))", "{a}.narrow(0, 0, {n})",
        "torch.where({a} > 0, {a}, {a} * 2)", "{a}[torch.where({a}[:, 0] > 0)[0]]", "{a}.unsqueeze(0).squeeze(0)",
        "{v}[:, None].expand(-1, 3)", "{a}.index_select(0, torch.nonzero({a}[:, 1] > 0)[:, 0])",
    ],
    "vector": [
        "{a}[{a} > 0]", "{a}.sum(1)", "{a}.flatten()", "{v}[{v} > 0].exp()", "{v} * 2", "torch.cat([{v}, {v}[:1]])",
        "{v}.sort().values", "{v}.cumsum(0)", "torch.masked_select({a}, {a} < 0)", "{v}[:{n}]", "{v}[{n}:]",
        "torch.arange({n}).double()", "{v}.squeeze()", "{v}.unique()", "torch.bincount(({v} > 0).long()).double()",
        "torch.full(({n},), 2.0, dtype=torch.float64)", "{v} + {v}", "{a}[:, 1]", "torch.outer({v}, {v}).diagonal()",
        "{v}.roll(1)", "torch.ones_like({v}).mul_({v})", "{v}.view(-1, 1).sum(1)",
    ],
    "number": [
        "({v} > 0).sum().item()", "{v}.shape[0]", "{a}.shape[0] + 1", "{a}.numel() // 2", "len({v})", "max({n}, 2)",
        "min({n}, {v}.shape[0])", "{n} + {a}.size(0)", "abs({n})", "{n} % 3",
    ],
    "effect": [
        "given[0].add_(1)", "given[given > 0] *= 0.5", "{a}.add_({n})", "{v}.mul_(2)", "given[:1] = {a}.sum()",
    ],
}  # fmt: skip
KINDS = {"rows": "a", "vector": "v", "number": "n"}


def program_of(seed: int) -> tuple[str, Callable[..., Any]]:
    generator = random.Random(seed)
    names = {"rows": ["a0"], "vector": ["v0"], "number": ["n0"]}
    lines = ["def program(given):", "    a0, v0 = given[given[:, 0] > 0], given[given > 0]", "    n0 = v0.shape[0]"]
    for at in range(1, LENGTH + 1):
        kind = generator.choices(list(STATEMENTS), (6, 6, 3, 1))[0]
        picked = {letter: generator.choice(names[of][-3:]) for of, letter in KINDS.items()}
        text = generator.choice(STATEMENTS[kind]).format(**picked)
        if kind == "effect":
            lines.append(f"    {text}")
            continue
        names[kind].append(f"{KINDS[kind]}{at}")
        lines.append(f"    {KINDS[kind]}{at} = {text}")
    lines.append(f"    return {', '.join(one for of in names.values() for one in of)}")
    space: dict[str, Any] = {"torch": torch}
    text = "\n".join(lines)
    exec(compile(text, f"<program {seed}>", "exec"), space)
    return text, space["program"]


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(5, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    one = -drawn[0].abs()
    one[3, 0] = 0.7
    return [*drawn, -drawn[1].abs(), one, drawn[2].abs()]


def outcome(run: Callable[..., Any], given: torch.Tensor) -> Any:
    try:
        return run(given)
    except Exception as error:
        return type(error)


def check(seed: int, backend: str) -> None:
    text, program = program_of(seed)
    compiled = stator.compile(program, backend=backend)
    for number, given in enumerate(inputs()):
        mine, other = given.clone(), given.clone()
        expected, got = outcome(program, other), outcome(compiled, mine)
        where = f"on input {number} of\n{text}\n{got}\nis not\n{expected}"
        assert type(got) is type(expected) and (not isinstance(got, type) or got is expected), where
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12, msg=lambda text, where=where: f"{text} {where}")
        for one, another in zip(got, expected, strict=True) if isinstance(got, tuple) else ():
            assert type(one) is type(another), where
            torch.testing.assert_close(
                one, another, rtol=1e-9, atol=1e-12, equal_nan=True, msg=lambda text, where=where: f"{text} {where}"
            )
            assert not isinstance(one, torch.Tensor) or significant_strides(one) == significant_strides(another), where


def gradient(run: Callable[..., Any], given: torch.Tensor) -> Any:
    """Of all results, or the type of the error."""
    leaf = given.clone().requires_grad_()
    try:
        results = [one for one in run(leaf * 1) if isinstance(one, torch.Tensor) and one.requires_grad]
        total = sum((result * (result + 1)).sum() for result in results)
        return torch.autograd.grad(total, leaf, allow_unused=True)[0] if results else None
    except Exception as error:
        return type(error)


def check_gradients(seed: int, backend: str) -> None:
    text, program = program_of(seed)
    compiled = stator.compile(program, backend=backend)
    for given in inputs():
        got, expected = gradient(compiled, given), gradient(program, given)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
        else:
            assert got is expected, text


@pytest.mark.parametrize("seed", range(60))
def test_as_in_eager(seed: int) -> None:
    check(seed, "eager")


@pytest.mark.parametrize("seed", range(60, 80))
def test_ahead_of_time(seed: int) -> None:
    check(seed, "aot_eager")


@pytest.mark.parametrize("seed", range(80, 100))
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients(seed: int, backend: str) -> None:
    check_gradients(seed, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("start", range(100, 600, 50))
def test_more_programs(start: int, backend: str) -> None:
    for seed in range(start, start + (50 if backend != "inductor" else 5)):
        check(seed, backend)
