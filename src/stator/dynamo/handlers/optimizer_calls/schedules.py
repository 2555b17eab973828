"""Numbers that schedulers set: symbolic from the first version on, before they first change."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING

from torch import optim

from stator.dynamo.guards.source import ItemSource, Source
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value
from stator.dynamo.values.containers.mappings import DictValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def expect_schedule(context: CaptureContext, optimizer: Value) -> None:
    """Expect changes of the learning rate, and of the momentum if a scheduler has left its entry in the group, so that
    the first change compiles nothing."""
    for group in context.iterate(context.get_attr(optimizer, "param_groups")):
        if isinstance(group, DictValue) and group.source is not None and group.obj is not None:
            places: set[Source] = {ItemSource(group.source, "lr")} if type(group.obj.get("lr")) is not int else set()
            if "max_momentum" in group.obj:
                places |= {ItemSource(group.source, "momentum"), ItemSource(ItemSource(group.source, "betas"), 0)}
            context.expected |= places


def _register(step: FunctionType) -> None:
    """Some optimizers read the learning rate before they call another function with a handler."""

    def handler(context: CaptureContext, optimizer: Value, *args: Value, **kwargs: Value) -> Value:
        expect_schedule(context, optimizer)
        return context.inline(context.known(step), [optimizer, *args], kwargs)  # type: ignore[arg-type]

    calls(step)(handler)


for _class in vars(optim).values():
    if isinstance(_class, type) and issubclass(_class, optim.Optimizer) and _class is not optim.LBFGS:
        _step = vars(_class).get("step")
        if type(_step) is FunctionType:
            _register(inspect.unwrap(_step))
