"""Numbers that schedulers set or count: symbolic from the first version on, before they first change.

Failed guards find other numbers that change (values/symbolic_numbers.py).
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING

from torch import optim
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from stator.dynamo.guards.source import ItemSource, Source
from stator.dynamo.interpreter.calling import calls, handlers
from stator.dynamo.values.base import Value
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.objects import ObjectValue

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


_COUNTED = ("last_epoch", "_step_count", "T_cur", "num_bad_epochs", "cooldown_counter", "best")


def _follows_counters(step: FunctionType) -> None:
    """Expect changes of the counters of a scheduler that captured code steps."""

    def handler(context: CaptureContext, scheduler: Value, *args: Value, **kwargs: Value) -> Value:
        if isinstance(scheduler, ObjectValue) and scheduler.source is not None:
            real = scheduler.instance_dict() or {}
            attributes: Source = scheduler.dict_source  # type: ignore[assignment]
            rates = ItemSource(attributes, "_last_lr")
            context.expected |= {ItemSource(attributes, name) for name in _COUNTED}
            context.expected |= {ItemSource(rates, at) for at in range(len(real.get("_last_lr") or ()))}
            expect_schedule(context, context.get_attr(scheduler, "optimizer"))
        return context.inline(context.known(step), [scheduler, *args], kwargs)  # type: ignore[arg-type]

    calls(step)(handler)


for _class in (lr_scheduler.LRScheduler, *vars(lr_scheduler).values(), SWALR):
    if isinstance(_class, type) and issubclass(_class, lr_scheduler.LRScheduler):
        _step = vars(_class).get("step")
        if isinstance(_step, FunctionType) and _step not in handlers:
            _follows_counters(_step)


def _follows_schedules(step: FunctionType) -> None:
    """Some optimizers read the learning rate before they call another function with a handler."""

    def handler(context: CaptureContext, optimizer: Value, *args: Value, **kwargs: Value) -> Value:
        expect_schedule(context, optimizer)
        return context.inline(context.known(step), [optimizer, *args], kwargs)  # type: ignore[arg-type]

    calls(step)(handler)


for _class in vars(optim).values():
    if isinstance(_class, type) and issubclass(_class, optim.Optimizer) and _class is not optim.LBFGS:
        _step = vars(_class).get("step")
        if isinstance(_step, FunctionType):
            _follows_schedules(inspect.unwrap(_step))
