"""Operators on lists of tensors are traced as operators on single tensors, with eager's results, for every overload."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stator.graph.tracing.functional import trace_operator
from stator.prims.record import TensorMeta

aten = torch.ops.aten
SHAPES = ((3, 2), (4,), ())
NUMBERS = (0.5, 1.5, 2.0)


def overloads() -> list[torch._ops.OpOverload]:
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if packet.startswith("_foreach_") and not packet.endswith("_") and not overload.endswith("out"):
            found.append(getattr(getattr(aten, packet), overload or "default"))
    return found


def tensors(seed: int, matrices: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 2),) * 3 if matrices else SHAPES
    return [torch.rand(shape, generator=generator) * 0.7 + 0.2 for shape in shapes]


def arguments(target: torch._ops.OpOverload) -> list[Any]:
    given: list[Any] = []
    for at, argument in enumerate(target._schema.arguments):
        if argument.kwarg_only or argument.has_default_value():
            continue
        kind = str(argument.type)
        if kind == "List[Tensor]":
            given.append(tensors(at, matrices="mm" in target._schema.name))
        elif kind.startswith("List["):
            given.append(list(NUMBERS))
        elif argument.name == "scalars":
            given.append(torch.tensor(NUMBERS, dtype=torch.float64))
        else:
            given.append(torch.tensor(1.5) if kind == "Tensor" else 1.5)
    return given


def meta(value: Any) -> Any:
    if isinstance(value, list):
        return [meta(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    return TensorMeta(tuple(value.shape), value.stride(), value.dtype, value.device)


def traced(target: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    module = trace_operator(target, tuple(map(meta, args)), kwargs, keep=lambda part: "_foreach" not in str(part))
    called = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert not any("_foreach" in str(one) for one in called)
    given = [one for arg in args for one in (arg if isinstance(arg, list) else [arg]) if isinstance(one, torch.Tensor)]
    return list(module(*given))


@pytest.mark.parametrize("target", overloads(), ids=str)
def test_each_element_is_as_in_eager(target: torch._ops.OpOverload) -> None:
    args = arguments(target)
    for one, other in zip(traced(target, *args), target(*args), strict=True):
        assert meta(one) == meta(other)
        torch.testing.assert_close(one, other)


def test_a_factor_counts_for_add_and_sub() -> None:
    for target in (aten._foreach_add.List, aten._foreach_sub.List):
        found = traced(target, tensors(0), tensors(1), alpha=0.5)
        for one, other in zip(found, target(tensors(0), tensors(1), alpha=0.5), strict=True):
            torch.testing.assert_close(one, other)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"same (number of tensors|length)"):
        traced(aten._foreach_add.List, tensors(0), tensors(1)[:2])
    with pytest.raises(RuntimeError):
        traced(aten._foreach_add.List, [torch.ones(2)], [torch.ones(3)])
