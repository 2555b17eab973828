"""Guards on the contents of small integer inputs (sizes of images, lengths, splits) and small module buffers. Where the
program turns such contents into Python numbers or sizes, capture goes on with the current contents under a guard. If
the guard fails repeatedly, the graph breaks there instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from stator.dynamo.cache.dynamic_sources import OFTEN, contents, contents_change, contents_source
from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import CallSource, is_buffer
from stator.dynamo.values.base import CaptureContext, unsupported
from stator.dynamo.values.tensors.tensor import TensorValue, has_fixed_sizes
from stator.graph.fake.fake_mode import SCALAR_READS, FakeMode, FakeTensor
from stator.graph.fake.unknown_sizes import nested_lists
from stator.graph.fake.wrapper_subclasses import is_wrapper, storages_of
from stator.graph.ir.schema import op_info

from .possible_views import PossibleView
from .side_effect_analysis import Footprint

_LARGEST = 16  # elements; larger tensors are data rather than sizes
_MANY_FACTS = 4  # truths about one input; from then on, its contents are compared instead
_WHOLE = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))


def follow_contents(context: CaptureContext, value: TensorValue) -> None:
    """Give an input's fake the input's contents, if the input is small and its contents did not change often."""
    tensor: torch.Tensor = value.obj  # type: ignore[assignment]
    if is_wrapper(tensor) or not has_fixed_sizes(value.fake):
        return
    if not 0 < tensor.numel() <= _LARGEST or tensor.requires_grad or tensor.is_complex():
        return
    # single numbers outside of buffers are counters more often than sizes
    if not is_buffer(value.source) and (not tensor.dim() or tensor.dtype not in _WHOLE):
        return
    sizes = context.recorder.numbers.inputs
    if sizes.dynamic and not sizes.fixed and not is_buffer(value.source):  # its numbers change as sizes do
        return
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or value.fake.tracked_value() is not None:  # type: ignore[attr-defined]
        return
    if value.fake.fake_storage.version or contents_change(context.changing, value.source):  # type: ignore[attr-defined,arg-type]
        return
    with torch._C._InferenceMode(False), torch.no_grad():
        value.fake.hold(torch.empty_like(tensor).copy_(tensor), frozenset((value,)))  # type: ignore[attr-defined]


class CaptureFakeMode(FakeMode):
    """The fake mode of a capture, which notes the contents of inputs that the capture relied on."""

    def __init__(self, context: CaptureContext) -> None:
        super().__init__()
        self.context = context
        self.relied_on: set[TensorValue] = set()
        self.facts: Counter[TensorValue] = Counter()  # how many truths about an input's data the capture relied on
        self.apart: set[tuple[TensorValue, TensorValue]] = set()  # pairs that a guard keeps in different memory
        self.times = 0
        self.footprint = Footprint()
        self.keeps_unknown_sizes = True
        self.has_unknown_sizes = False
        self.read: list[tuple[FakeTensor, Any]] = []  # by the current operator: whole numbers in tensors
        self.reads_sizes = False  # does one of these follow from sizes?
        self.copies: list[PossibleView] = []
        self._unnoted = 0

    def dispatch(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._unnoted:
            self.footprint.note(func, args, kwargs)
        return super().dispatch(func, args, kwargs)

    def asks_later(self) -> bool:
        recorder = self.context.recorder
        return not recorder.open and not recorder.transforms

    def note_copy(self, source: FakeTensor, made: FakeTensor, is_view: Callable[[], bool], alike: bool) -> None:
        self.copies.append(PossibleView(source, made, is_view, alike, self.context.place()))

    def note_question(self, target: Any, tensors: list[torch.Tensor]) -> None:
        for copy in self.copies:
            copy.note_question(target, tensors)

    def may_keep_unknown_numbers(self) -> bool:
        """Whether the current code may use numbers known only at run time; deferred and transformed code may not."""
        recorder = self.context.recorder
        inside = recorder.transforms or not self.context.in_the_call
        return self.keeps_unknown_sizes and not inside and not recorder.function_modes

    def of_unknown_size(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        if not self.may_keep_unknown_numbers():
            return NotImplemented
        result = self.context.recorder.numbers.unknown.results(func, args, kwargs)
        if result is NotImplemented:
            return NotImplemented
        self.has_unknown_sizes = True
        if func in SCALAR_READS:
            self.read.append((tensors[0], result))
        return self._wrap(op_info(func), result, tensors)

    def number_of_sizes(self, fake: FakeTensor) -> Any:
        number = super().number_of_sizes(fake)
        if number is not None:
            self.read.append((fake, number))
            self.reads_sizes = True
        return number

    def unknown_size(self) -> Any:
        if not self.may_keep_unknown_numbers():
            return super().unknown_size()
        self.has_unknown_sizes = True
        unknown = self.context.recorder.numbers.unknown
        unknown.answered += 1
        return unknown.size(math.inf)

    def counted(self, mask: FakeTensor) -> Any:
        return self.context.recorder.numbers.unknown.counted(mask)

    def listed(self, fake: FakeTensor) -> Any:
        numbers = self.context.recorder.numbers.unknown.whole_numbers(fake) if self.may_keep_unknown_numbers() else None
        if numbers is None:
            return super().listed(fake)
        self.has_unknown_sizes = True
        return nested_lists(iter(numbers), tuple(fake.shape))

    def _give_history(self, fake: FakeTensor) -> None:
        """These operations on the fake are not the program's."""
        self._unnoted += 1
        try:
            super()._give_history(fake)
        finally:
            self._unnoted -= 1

    def writes_outside(self) -> bool:
        """Whether an operator wrote to memory from before the capture."""
        written = self.footprint.written
        known = (*(fake for _, fake in self._fakes.values()), *(fake for _, fake in self._constants.values()))
        return bool(written) and any(id(fake.fake_storage) in written for fake in known)

    def forget(self) -> None:
        """Release the capture, which fakes may outlive."""
        super().forget()
        self.relied_on.clear()
        self.facts.clear()
        self.apart.clear()
        self.copies.clear()
        del self.context

    def rely_on(self, known_from: frozenset[Any]) -> bool:
        """Guard the contents of these inputs, unless contents that this line relied on before changed often: code that
        every layer runs need not meet each layer's changes. Raises Unsupported if the graph may have written to
        them."""
        if self.context.place() in self.context.unsteady:
            return False
        self.times += 1
        for value in known_from:
            self.rely_on_no_other_writer(value)
            if value not in self.relied_on:
                self.relied_on.add(value)
                self.context.guard(contents_source(value.source), GuardKind.EQUALS, contents(value.obj))
        return True

    def rely_on_contents(self, inputs: list[TensorValue]) -> bool:
        """Guard the contents of these inputs, if they are small, did not change often, and decide many branches: a
        comparison of all numbers is cheaper then than to compute each truth again."""
        self.facts.update(inputs)
        for value in inputs:
            few = self.facts[value] < _MANY_FACTS and value not in self.relied_on
            if few or value.obj.numel() > _LARGEST:  # type: ignore[union-attr]
                return False
            if self.context.changing.get(contents_source(value.source), 0) >= OFTEN:  # type: ignore[arg-type]
                return False
        return self.rely_on(frozenset(inputs))

    def rely_on_no_other_writer(self, value: TensorValue) -> None:
        """Guard that no written input with another storage shares the value's memory, as a view of another dtype or a
        NumPy array does. Static tensors stay apart."""
        recorder = self.context.recorder
        written = {id(storage) for storage in recorder.writes} - {id(value.fake.fake_storage)}  # type: ignore[attr-defined]
        for other in recorder.input_values if written else ():
            pair = (value, other)
            if written.isdisjoint(map(id, storages_of(other.fake))) or pair in self.apart:
                continue
            if is_wrapper(other.fake) or share_memory(value.obj, other.obj):  # type: ignore[arg-type]
                raise unsupported("data-dependent-value", f"the contents of {value.source} after a write to its memory")
            self.apart.add(pair)
            if value.is_static and other.is_static:
                continue
            overlap = CallSource(share_memory, (value.source, other.source))  # type: ignore[arg-type]
            self.context.guard(overlap, GuardKind.EQUALS, False)


def share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the storages of two tensors overlap. The storage of an array begins at the array."""
    mine, theirs = one.untyped_storage(), other.untyped_storage()
    if mine.device != theirs.device:
        return False
    return mine.data_ptr() < theirs.data_ptr() + theirs.nbytes() and theirs.data_ptr() < mine.data_ptr() + mine.nbytes()
