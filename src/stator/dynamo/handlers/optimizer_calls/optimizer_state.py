"""Makes the state of torch's optimizers while the first step is captured, so that one version, which finds the state,
serves all steps.

`_init_group` makes the state (zeros, a step count) that eager would make in this call. A step that finds fresh state
computes the results of a step that makes it, so the state may stay if the capture fails.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _device_dtype_check_for_fused

from stator.dynamo.host.compile_directives import unwrap_torch_disable
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import CaptureContext, NotConstant, Raised, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.tensors.tensor import TensorValue

# The attribute of fused optimizers that is true until the first step has checked devices and dtypes.
_UNCHECKED = "_need_device_dtype_check_for_fused"


def _register(init_group: FunctionType) -> None:
    def handler(context: CaptureContext, optimizer: Value, group: Value, *lists: Value, **named: Value) -> Value:
        if all(isinstance(one, ListValue) for one in lists) and not named:
            _make_state(context, init_group, optimizer, len(lists))
        return context.inline(context.known(init_group), [optimizer, group, *lists], named)  # type: ignore[arg-type]

    calls(init_group)(handler)


def _make_state(context: CaptureContext, init_group: FunctionType, optimizer: Value, count: int) -> None:
    """Make the state of all groups, unless the program has looked at the state. count: the number of lists that
    `init_group` fills."""
    try:
        real = optimizer.real()
    except NotConstant:
        return
    if not isinstance(real, Optimizer):
        return
    if id(real.state) in context.wrapped:
        return
    for group in context.iterate(context.get_attr(optimizer, "param_groups")):
        if context.mutations.touches(group):
            return  # initial state may depend on values of the group
        try:
            graded = _with_gradients(context, group)
            if graded:
                _check_for_fused(real, group, graded)
            graded = _without_state(context, real, group, graded)
        except Raised:
            return  # the group lacks an entry: the step itself raises the error
        if graded:
            _make_state_of_group(init_group, real, group, graded, count)


def _with_gradients(context: CaptureContext, group: Value) -> list[Any]:
    """The group's parameters that have a gradient at this point of the captured program."""
    parameters = list(context.iterate(context.get_item(group, context.constant("params"))))
    return [one.obj for one in parameters if isinstance(one, TensorValue) and _has_gradient(context, one)]


def _check_for_fused(real: Optimizer, group: Value, graded: list[Any]) -> None:
    """Make the check that some fused optimizers make in their first step. If it fails, the step itself raises."""
    if not getattr(real, _UNCHECKED, False) or None in graded:
        return
    try:
        if group.real()["fused"]:
            _device_dtype_check_for_fused(graded[0])
            setattr(real, _UNCHECKED, False)
    except (NotConstant, RuntimeError):
        return


def _without_state(context: CaptureContext, real: Optimizer, group: Value, graded: list[Any]) -> list[Any]:
    """`graded` if some of these parameters have no state yet, else nothing."""
    if any(one is None for one in graded) or all(one in real.state for one in graded):
        return []
    if isinstance(real, torch.optim.SGD):
        momentum = context.get_item(group, context.constant("momentum"))
        return graded if context.truth(context.compare(operator.ne, momentum, ConstantValue(0))) else []
    return graded


def _make_state_of_group(
    init_group: FunctionType, real: Optimizer, group: Value, graded: list[Any], count: int
) -> None:
    try:
        real_group = group.real()
    except NotConstant:
        return
    with _gradients_for(real_group["params"], graded), torch.no_grad():
        init_group(real, real_group, *([] for _ in range(count)))
        if isinstance(real, torch.optim.SGD):
            _make_momentum(real, real_group, graded)


def _make_momentum(optimizer: Optimizer, group: dict[str, Any], graded: list[Any]) -> None:
    """SGD's momentum begins as the first gradient. Unless gradients are dampened, the formula of later steps computes
    these bits from negative zeros."""
    if group["momentum"] == 0 or group["dampening"] != 0:
        return
    for parameter in graded:
        state = optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.full_like(parameter, -0.0, requires_grad=False)


def _has_gradient(context: CaptureContext, parameter: TensorValue) -> bool:
    return not context.is_none(context.get_attr(parameter, "grad"))


@contextmanager
def _gradients_for(parameters: list[torch.Tensor], graded: list[Any]) -> Iterator[None]:
    """In the block, exactly these parameters have a gradient. Only its metadata matters."""
    before = [parameter.grad for parameter in parameters]
    wanted = {id(parameter) for parameter in graded}
    try:
        for parameter, gradient in zip(parameters, before, strict=True):
            if id(parameter) not in wanted:
                parameter.grad = None
            elif gradient is None:
                parameter.grad = parameter.detach()
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


_own = [vars(_class).get("_init_group") for _class in vars(torch.optim).values() if isinstance(_class, type)]
# torch.compile, where it disables an inherited `_init_group`, gives the subclass its own
for _init_group in {unwrap_torch_disable(_one) for _one in _own if type(_one) is FunctionType}:
    _register(_init_group)
