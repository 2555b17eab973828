"""torch.distributed: facts of process groups, and the functions that make, convert and open distributed tensors.

Such a function is one operation of the graph. Mesh and placements are constants of the operation.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from stator.dynamo.guards.source import CallSource, ConstantSource
from stator.dynamo.interpreter.calling import calls, named_handlers
from stator.dynamo.values.base import CaptureContext, Value, unsupported
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.subgraphs.custom_autograd import graph_target

# ---- process groups ----


def _register_fact(read: Any) -> None:
    @calls(read)
    def handler(context: CaptureContext, group: Value) -> Value:
        real = context.real_of(group, "a process group")
        context.guards.identity_once(group)
        return ConstantValue(context.run_real(read, (real,)))


_GROUP = getattr(getattr(torch._C, "_distributed_c10d", None), "ProcessGroup", None)
if _GROUP is not None:
    _register_fact(vars(_GROUP)["rank"].__func__)
    _register_fact(vars(_GROUP)["size"].__func__)
    _register_fact(vars(_GROUP)["group_name"].fget)

    @calls(torch._C._distributed_c10d._resolve_process_group)
    def _group_of_name(context: CaptureContext, name: Value) -> Value:
        find = torch._C._distributed_c10d._resolve_process_group
        text = context.constant_of(name, "the name of a process group")
        return context.wrap(context.run_real(find, (text,)), CallSource(find, (ConstantSource(repr(text), text),)))


@named_handlers.register(("torch.distributed.device_mesh", "DeviceMesh.__getitem__"))
def _sub_mesh(context: CaptureContext, mesh: Value, names: Value) -> Value:
    """A part of a mesh, which equals the part that each call would make."""
    real = context.real_of(mesh, "a mesh")
    context.guards.identity_once(mesh)
    return context.known(context.run_real(type(real).__getitem__, (real, context.constant_of(names, "a dimension"))))


# ---- distributed tensors ----


@dataclass(frozen=True, slots=True)
class _Tensor:
    """In arguments of an operation: the tensor at this position."""

    position: int


@dataclass(frozen=True, slots=True)
class _Bound:
    """A function with all its arguments but the tensors."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]

    def __call__(self, *tensors: torch.Tensor) -> Any:
        args = [tensors[arg.position] if isinstance(arg, _Tensor) else arg for arg in self.args]
        kwargs = {name: tensors[arg.position] if isinstance(arg, _Tensor) else arg for name, arg in self.kwargs.items()}
        return self.function(*args, **kwargs)


def _recorded(module: str, name: str, refuse: Callable[..., str | None] | None = None) -> None:
    """Let calls of a function be operations of the graph. refuse: takes the function's arguments; says why the graph
    cannot hold the call."""

    def handler(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
        function = operator.attrgetter(name)(sys.modules[module])
        tensors: list[Value] = []
        what = f"an argument of {name}"
        real_args = [_bound(context, arg, tensors, what) for arg in args]
        real_kwargs = {key: _bound(context, arg, tensors, what) for key, arg in kwargs.items()}
        why = None if refuse is None else context.run_real(refuse, tuple(real_args), real_kwargs)
        if why is not None:
            raise unsupported("tensor-subclass", f"{name} {why}")
        bound = _Bound(function, real_args, real_kwargs)
        return context.record_function(graph_target(bound, name.rpartition(".")[2]), tensors, {})

    named_handlers.register((module, name))(handler)


def _bound(context: CaptureContext, value: Value, tensors: list[Value], what: str) -> Any:
    value = context.realized(value)
    if isinstance(value, TensorValue):
        tensors.append(value)
        return _Tensor(len(tensors) - 1)
    if isinstance(value, (ListValue, TupleValue)):
        items = [_constant(context, item, what) for item in context.iterate(value)]
        return torch.Size(items) if value.cls is torch.Size else tuple(items)
    return _constant(context, value, what)


def _constant(context: CaptureContext, value: Value, what: str) -> Any:
    value = context.realized(value)
    if value.is_constant() or value.python_type(context) is not DeviceMesh:
        return context.constant_of(value, what)
    real = context.real_of(value, what)
    if value.source is not None:
        context.guards.identity_once(value)
    return real


def _check_from_local(
    local: Any, device_mesh: Any = None, placements: Any = None, *, run_check: bool = False, **options: Any
) -> str | None:
    if device_mesh is None:
        return "without a mesh, which takes the mesh of the surrounding block"
    return "that compares the tensors of all processes (run_check)" if run_check else None


def _check_factory(*sizes: Any, device_mesh: Any = None, requires_grad: bool = False, **options: Any) -> str | None:
    if device_mesh is None:
        return "without a mesh, which takes the mesh of the surrounding block"
    return "that requires grad" if requires_grad else None


def _check_distribute(
    tensor: Any, device_mesh: Any = None, placements: Any = None, *, src_data_rank: int | None = 0
) -> str | None:
    if device_mesh is None:
        return "without a mesh, which takes the mesh of the surrounding block"
    return None if src_data_rank is None else "that sends the data of one process to the others (src_data_rank)"


_API = "torch.distributed.tensor._api"
_recorded(_API, "DTensor.from_local", _check_from_local)
_recorded("torch.distributed.tensor", "distribute_tensor", _check_distribute)
for _name in ("empty", "full", "ones", "zeros"):
    _recorded("torch.distributed.tensor", _name, _check_factory)
for _name in ("DTensor.to_local", "DTensor.redistribute", "DTensor.full_tensor"):
    _recorded(_API, _name)
for _name in ("AsyncCollectiveTensor.trigger_wait", "AsyncCollectiveTensor.wait"):
    _recorded("torch.distributed._functional_collectives", _name)
