"""Graphs with symbolic sizes for tests: one compilation of a function, compared with eager at many sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stator import pipeline
from stator.base.config import Options
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int

Dims = Sequence["str | None"]  # the name of each dimension's symbol; None for a constant size


def symbolic_fakes(tensors: Sequence[torch.Tensor], dims: Sequence[Dims], environment: Environment) -> list[Any]:
    """Fakes of dense tensors, with symbols for the named dimensions."""
    mode, symbols, made = FakeMode(), {}, []
    for tensor, names in zip(tensors, dims, strict=True):
        shape: list[Any] = list(tensor.shape)
        for dim, name in enumerate(names):
            if name is not None:
                if name not in symbols:
                    symbols[name] = environment.size(name, shape[dim])
                shape[dim] = symbols[name]
        strides: list[Any] = [1] * tensor.dim()
        running: Any = 1
        for dim in sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim)):
            strides[dim] = running
            running = running * shape[dim]
        sizes, strides = ([to_sym_int(environment, one) for one in part] for part in (shape, strides))
        made.append(mode.make(TensorMeta(tuple(sizes), tuple(strides), tensor.dtype, tensor.device, 0)))
    return made


def compiled_once(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], dims: Sequence[Dims]
) -> tuple[Callable[..., Any], Environment]:
    environment = Environment()
    traced = trace(function, symbolic_fakes(tensors, dims, environment), keep=can_lower)
    return pipeline.compile_graph(traced.graph, list(tensors), options=Options(verify=True)), environment


def check_at_sizes(
    function: Callable[..., Any],
    make: Callable[..., Sequence[torch.Tensor]],
    dims: Sequence[Dims],
    sizes: Sequence[tuple[int, ...]],
    **tolerance: float,
) -> Environment:
    """Compile for the first sizes, and compare with eager at all sizes. The facts have to hold at all of them."""
    compiled, environment = compiled_once(function, make(*sizes[0]), dims)
    for values in sizes:
        tensors = make(*values)
        expected = function(*tensors)
        expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
        found = compiled(*tensors)
        for one, other in zip(found, expected, strict=True):
            strides = zip(one.stride(), other.stride(), one.shape, strict=True)
            assert all(mine == eager or size == 1 for mine, eager, size in strides), values
            torch.testing.assert_close(one, other, **tolerance, msg=lambda text, at=values: f"at {at}: {text}")
    return environment
