"""Numbers that the program, or an operator for itself, reads from tensors of the graph."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import fx

from stator.dynamo.cache.dynamic_sources import number_at, number_source
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.values.base import CaptureContext, Value
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.sequences import ListValue, TupleValue
from stator.dynamo.values.containers.slices import SliceValue
from stator.dynamo.values.tensors.tensor import TensorValue, truths
from stator.graph.fake.scalar_expressions import scalar_of
from stator.graph.fake.unknown_sizes import WHOLE
from stator.graph.fake.wrapper_subclasses import version_of

# Elements of a tensor that becomes a list: each number costs a millisecond of capture, so that a break is cheaper for
# long lists. Under fullgraph there is no limit.
_MOST_NUMBERS = 64


def may_be_read(context: CaptureContext, tensor: TensorValue, listed: bool = False) -> bool:
    """Whether the graph can read the numbers in a tensor: several whole numbers, or one of another type. Under
    fullgraph it can also list several numbers of another type."""
    if tensor.fake.dtype.is_complex or not context.recorder.mode.may_keep_unknown_numbers():
        return False
    if listed and (tensor.fake.dtype in WHOLE or context.recorder.fullgraph):
        context.recorder.numbers.has_fixed_sizes("tolist()", tensor.fake)
    count, fullgraph = tensor.fake.numel(), context.recorder.fullgraph
    if type(count) is not int:
        return False
    return count <= 1 or (listed and (fullgraph or (tensor.fake.dtype in WHOLE and count <= _MOST_NUMBERS)))


def read_number(recorder: Any, tensor: TensorValue) -> Value:
    """`tensor.item()`. Copies a float or bool, because operators may write to the tensor before its use."""
    if (number := number_of_sizes(recorder, tensor)) is not None:
        return number
    dtype = tensor.fake.dtype
    if dtype not in WHOLE:
        record = recorder.context.record_method
        number = record("reshape", [record("detach", [tensor], {}), TupleValue([])], {})
        wide = dtype if dtype is torch.bool else torch.float64
        copied = record("to", [number, ConstantValue(wide)], {"copy": ConstantValue(True)})
        return recorder.numbers.of_tensor(copied)
    number = recorder.run_fake(torch.Tensor.item, "item", [tensor.fake], {})
    node = recorder.item_call(tensor)
    node.meta["data_dependent"] = True
    recorder.numbers.note_number(number, node)
    return recorder.numbers.number(number)


def number_of_sizes(recorder: Any, tensor: TensorValue) -> Value | None:
    """The number in a tensor that follows from sizes."""
    scalar = scalar_of(tensor.fake)
    if scalar is None or (scalar.known_from and not recorder.mode.rely_on(scalar.known_from)):
        return None
    return recorder.numbers.value(scalar.expression)  # type: ignore[no-any-return]


def _truth_of_sizes(context: CaptureContext, value: TensorValue, at_branch: bool) -> bool | None:
    number = number_of_sizes(context.recorder, value)
    return None if number is None else number.truth(context)


truths.append(_truth_of_sizes)


def read_list(recorder: Any, tensor: TensorValue) -> Value:
    """`tensor.tolist()`, of known shape."""
    if tensor.fake.dtype not in WHOLE:
        if not tensor.fake.shape:
            return read_number(recorder, tensor)
        context = recorder.context
        parts = context.record_method("unbind", [context.record_method("detach", [tensor], {})], {})
        return ListValue([read_list(recorder, part) for part in context.iterate(parts)])
    recorder.op_count += 1
    node = recorder.graph.call_method("tolist", (recorder.node_of(tensor),))
    node.meta["place"] = recorder.context.place()
    node.meta["data_dependent"] = True
    return _numbers_in(recorder, tensor, node, (), tuple(tensor.fake.shape))


def _numbers_in(
    recorder: Any, tensor: TensorValue, node: fx.Node, place: tuple[int, ...], shape: tuple[int, ...]
) -> Value:
    if shape:
        return ListValue([_numbers_in(recorder, tensor, node, (*place, at), shape[1:]) for at in range(shape[0])])
    known = _small_number(recorder, tensor, place)
    if known is not None:
        return ConstantValue(known)
    info = torch.iinfo(tensor.fake.dtype)
    number = recorder.numbers.unknown.number(info.min, info.max)
    if not place:
        recorder.numbers.note_number(number, node)
    else:
        recorder.numbers.note_origin(number, lambda: _item(node, place))
    return recorder.numbers.number(number)


def _small_number(recorder: Any, tensor: TensorValue, place: tuple[int, ...]) -> int | None:
    """A 0 or 1 in an input, such as the number of frames in the grid of an image: a constant under a guard until it
    changes, because the graph would rely on more."""
    context, source, real = recorder.context, tensor.source, tensor.obj
    if source is None or real is None or not place or real.device.type != "cpu" or version_of(tensor.fake):
        return None
    found = number_source(source, place)
    number = number_at(real, *place)
    if number not in (0, 1) or found in context.changing:
        return None
    recorder.mode.rely_on_no_other_writer(tensor)
    context.guard(found, GuardKind.EQUALS, number)
    return number


def _item(node: fx.Node, place: tuple[int, ...]) -> fx.Node:
    """A number in nested lists. Nodes are made for the numbers in use, because lists may be long."""
    made = node
    for at in place:
        with node.graph.inserting_after(made):
            made = node.graph.call_function(operator.getitem, (made, at))
        made.meta["place"] = node.meta["place"]
    return made


def note_reads(recorder: Any, node: fx.Node) -> None:
    """Note the whole numbers that a new node reads from tensors of the graph."""
    for fake, number in recorder.mode.read:
        tensor = recorder.by_fake.get(id(fake))
        if tensor is not None and recorder.numbers.lacks_origin(number):
            recorder.numbers.note_origin(number, partial(_read_ahead, recorder.node_of(tensor), node))


def _read_ahead(tensor: fx.Node, node: fx.Node) -> fx.Node:
    """The number that a node reads from a tensor, read once more, ahead of the node."""
    with node.graph.inserting_before(node):
        made = node.graph.call_method("item", (tensor,))
    made.meta["place"] = node.meta["place"]
    made.meta["data_dependent"] = True
    return made


def in_place_of_reads(recorder: Any, args: list[Value], kwargs: dict[str, Value]) -> tuple[Any, Any] | None:
    """Arguments with numbers in place of the tensors from which an operator reads whole numbers; None if there are
    none."""
    read = {id(fake) for fake, _ in recorder.mode.read}
    given = [*args, *kwargs.values()]
    made = _with_numbers(recorder, given, read)
    return None if made is given else (made[: len(args)], dict(zip(kwargs, made[len(args) :], strict=True)))


def _with_numbers(recorder: Any, values: list[Value], read: set[int]) -> list[Value]:
    """The list itself if nothing in it is replaced."""
    given, made = [recorder.context.realized(value) for value in values], []
    for value in given:
        if isinstance(value, TensorValue) and id(value.fake) in read:
            value = read_number(recorder, value)
        elif type(value) is SliceValue:
            ends = [value.start, value.stop, value.step]
            items = _with_numbers(recorder, ends, read)
            value = value if items is ends else SliceValue(items[0], items[1], items[2])
        elif type(value) is TupleValue or type(value) is ListValue:
            items = _with_numbers(recorder, value.items, read)  # type: ignore[arg-type]
            value = value if items is value.items else type(value)(items)
        made.append(value)
    return values if all(one is other for one, other in zip(made, given, strict=True)) else made
