"""Operators of libraries that write to their arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator.base.errors import Unsupported


@torch.library.custom_op("stator_test_twins::add_to", mutates_args=("x",))
def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("stator_test_twins::scale_all", mutates_args=("xs", "count"))
def scale_all(a: torch.Tensor, xs: list[torch.Tensor], count: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    for x in xs:
        x.mul_(by)
    count.add_(1)
    return a * by


@scale_all.register_fake
def _(a: torch.Tensor, xs: list[torch.Tensor], count: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return torch.empty_like(a)


@torch.library.custom_op(
    "stator_test_twins::doubled",
    mutates_args=("out", "more"),
    schema="(Tensor a, Tensor(a!)? out=None, Tensor(b!)[]? more=None) -> Tensor",
)
def doubled(a: torch.Tensor, out: torch.Tensor | None = None, more: list[torch.Tensor] | None = None) -> torch.Tensor:
    for written in ([] if out is None else [out]) + (more or []):
        written.copy_(a * 2)
    return a * 2


@doubled.register_fake
def _(a: torch.Tensor, out: torch.Tensor | None = None, more: list[torch.Tensor] | None = None) -> torch.Tensor:
    return torch.empty_like(a)


_library = torch.library.Library("stator_test_twins", "FRAGMENT")
_library.define("chained(Tensor(a!) x, Tensor y) -> Tensor(a!)")
_library.impl("chained", lambda x, y: x.add_(y), "CompositeExplicitAutograd")


def _writes_to_inputs_and_views(x: torch.Tensor, y: torch.Tensor) -> Any:
    add_to(x, y)
    made = x * 2
    add_to(made[0], y[0])
    return made


def _writes_to_a_list(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x + 1
    count = torch.zeros(())
    return scale_all(y, [x, made], count, by=3.0), made, count


def _writes_to_optional_arguments(x: torch.Tensor, y: torch.Tensor) -> Any:
    made, first, second = x + 1, torch.empty_like(x), torch.empty_like(x)
    return (
        doubled(x),
        doubled(y, made),
        doubled(y, more=[first, x]),
        doubled(made, None, [second]),
        doubled(x, out=second[0:2], more=None),
        (made, first, second),
    )


def _returns_what_it_wrote(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x.clone()
    again = torch.ops.stator_test_twins.chained(made, y)
    again.add_(1)
    return made, again


def _writes_to_parts_of_one_storage(x: torch.Tensor, y: torch.Tensor) -> Any:
    made = x * 2
    add_to(made[0], made[1])
    scale_all(y, [made[:, :1], made[:, 2]], made[0, 1], by=3.0)
    scale_all(y, [*x.unbind()], made[1, 1])
    return made


FUNCTIONS = [
    _writes_to_inputs_and_views,
    _writes_to_a_list,
    _returns_what_it_wrote,
    _writes_to_parts_of_one_storage,
]
if torch.__version__ >= "2.12":  # before, eager does not count writes to what a call leaves out, and raises IndexError
    FUNCTIONS.append(_writes_to_optional_arguments)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_it_is_part_of_the_graph(function: Callable[..., Any], backend: str) -> None:
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(2, 3, generator=generator) for _ in range(2)]
    ours, theirs = ([tensor.clone() for tensor in given] for _ in range(2))
    expected = function(*theirs)
    actual = stator.compile(function, backend=backend, fullgraph=True)(*ours)
    torch.testing.assert_close((actual, ours), (expected, theirs))


def test_overlapping_writes_run_in_order() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = x * 2
        scale_all(x, [made[:3], made[1:]], torch.zeros(()))
        return made + 1

    x = torch.randn(4)
    torch.testing.assert_close(stator.compile(program)(x), program(x))
    with pytest.raises(Unsupported, match="overlapping-write"):
        stator.compile(program, fullgraph=True)(x)
