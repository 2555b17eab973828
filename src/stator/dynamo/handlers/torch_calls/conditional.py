"""Code that runs unless a tensor says otherwise: it is followed in any case, and where it should not have run, every
tensor that it wrote to gets its old contents back, inside of the graph.

That is all there is to put back: code that changes Python objects, or draws random numbers, is refused here. Who
decides to run something in this way is in polyfills/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from stator.base.errors import Unsupported
from stator.dynamo.graph.graph_builder import outside_inference_mode
from stator.dynamo.graph.mutations import MutationLog
from stator.dynamo.graph.subgraphs import reachable
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.source import ItemSource
from stator.dynamo.handlers.autograd_calls.functional_transforms import draws_random_numbers
from stator.dynamo.host.naming import class_name
from stator.dynamo.interpreter.calling import calls
from stator.dynamo.interpreter.generators import GeneratorValue
from stator.dynamo.ir.torch_state import TorchState
from stator.dynamo.values.base import Lazy, Raised, Value, unsupported
from stator.dynamo.values.cells import CellValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.iterators import IteratorValue
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.containers.sequences import ListValue
from stator.dynamo.values.objects import MISSING, ObjectValue
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


def run_unless(skip: torch.Tensor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)` unless `skip`, a tensor of one bool, is true; then nothing happens, and this is None.

    In captured code the function has to return None in any case.
    """
    return None if skip else function(*args, **kwargs)


@calls(run_unless)
def _run_unless(context: CaptureContext, skip: Value, function: Value, *args: Value, **kwargs: Value) -> Value:
    recorder = context.recorder
    if not isinstance(skip, TensorValue) or recorder.graph is not recorder.root:
        raise _refused("is decided in a part of the graph")
    start = _Start(context)
    with _conditional(context, function, *args, *kwargs.values()):
        result = context.call(function, list(args), kwargs)
    if not context.is_none(result):
        raise _refused("returns something")
    written = start.written()
    if written:
        olds = [start.contents(value) for value in written]
        context.call(context.known(_put_back), [skip, ListValue(list(written)), ListValue(list(olds))], {})
    return ConstantValue(None)


def unchanged(tensors: list[torch.Tensor]) -> None:
    """Says of tensors that were computed just before `run_unless` that nothing has written to them."""


@calls(unchanged)
def _unchanged(context: CaptureContext, tensors: Value) -> Value:
    for one in context.iterate(tensors):
        if isinstance(one, TensorValue) and one.fake.fake_storage.version:  # type: ignore[attr-defined]
            raise _refused("writes to gradients")
    return ConstantValue(None)


def _put_back(skip: torch.Tensor, tensors: list[torch.Tensor], olds: list[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, old in zip(tensors, olds, strict=True):
            tensor.copy_(torch.where(skip.to(tensor.device), old, tensor))


def _refused(what: str, until: Guard | None = None) -> Unsupported:
    error = unsupported("data-dependent-jump", f"code that runs depending on a tensor {what}")
    error.until = until
    return error


def refuse_to_make_state(context: CaptureContext, optimizer: Value) -> Unsupported:
    """The error for a step that may be skipped and would make state. Once there is state it is worth another try."""
    state = context.get_attr(optimizer, "state")
    until = None
    if isinstance(state, DictValue) and state.source is not None and state.obj is not None:
        until = Guard(state.source, GuardKind.LENGTH, len(state.obj))
    return _refused(
        "makes an optimizer's state, where eager only makes it in the first step that is not skipped", until
    )


class _Start:
    """Where the code begins: what there was before, and how to have it again."""

    def __init__(self, context: CaptureContext) -> None:
        self.context, self.recorder = context, context.recorder
        recorder = self.recorder
        self.known, self.writes, self.freed = len(recorder.by_fake), len(recorder.writes), len(recorder.freed)
        self.last: fx.Node = next(iter(reversed(recorder.graph.nodes)))
        if self.last.op == "placeholder":
            raise _refused("which is an input")  # nothing marks the place then

    def written(self) -> list[TensorValue]:
        """One tensor for each piece of memory that was there before and has been written to since."""
        recorder = self.recorder
        if len(recorder.freed) != self.freed:
            raise _refused("takes gradients")
        node = self.last.next
        while node.op != "root":
            if draws_random_numbers(node):
                raise _refused("draws random numbers")
            node = node.next
        storages = {id(storage) for storage in recorder.writes[self.writes :]}
        if not storages:
            return []
        found: dict[tuple[Any, ...], TensorValue] = {}
        for at, value in enumerate(list(recorder.by_fake.values())):
            fake: Any = value.fake
            if (at < self.known or value.source is not None) and id(fake.fake_storage) in storages:
                found.setdefault((id(fake.fake_storage), fake.storage_offset(), fake.shape, fake.stride()), value)
        return list(found.values())

    def contents(self, value: TensorValue) -> TensorValue:
        """What the tensor holds before the code runs: nodes that are put there afterwards."""
        recorder, fake = self.recorder, value.fake
        if any(stride == 0 and size > 1 for size, stride in zip(fake.shape, fake.stride(), strict=True)):
            raise _refused("writes to expanded memory")
        if fake.grad_fn is not None:
            raise _refused("writes to a tensor with a history")
        source = recorder.node_of(value)
        with recorder.graph.inserting_after(self.last):
            plain = recorder.graph.call_method("detach", (source,))
        with recorder.graph.inserting_after(plain):
            copied = recorder.graph.call_method("clone", (plain,))
        with outside_inference_mode(), torch.no_grad(), recorder.mode:
            view = fake.detach()
            result = view.clone()
        for node, example in ((plain, view), (copied, result)):
            node.meta["place"], node.meta["example_value"] = self.context.place(), example
        return recorder.wrap_tensor(result, copied)


@contextmanager
def _conditional(context: CaptureContext, *roots: Value) -> Iterator[None]:
    """Raises Unsupported when the captured code in the block does not leave everything but tensors as it is."""
    protected = reachable(roots)
    if any(isinstance(one, (IteratorValue, GeneratorValue)) for one in protected.values()):
        raise _refused("may advance an iterator")
    outer, modes = context.mutations, TorchState.now()
    changes = context.mutations = ConditionalChanges(context, outer, protected)
    try:
        yield
    except Raised as raised:
        raise _refused(f"raises {class_name(raised.value.python_type(context))}") from raised
    finally:
        context.mutations = outer
    changes.check()
    if TorchState.now() != modes:
        raise _refused("leaves torch's modes changed")


class ConditionalChanges(MutationLog):
    """Goes on with a log, and knows how what is written to in the meantime was before."""

    def __init__(self, context: CaptureContext, outer: MutationLog, protected: dict[int, Any]) -> None:
        super().__init__()
        self.context, self.protected = context, protected
        self.entries = outer.entries
        self.before = {key: _contents(*entry) for key, entry in outer.entries.items()}
        self.touched: dict[tuple[str, int, str], tuple[str, Any, str]] = {}

    def _note(self, kind: str, value: Any, name: str = "") -> None:
        super()._note(kind, value, name)
        self.touched[kind, id(value), name] = (kind, value, name)

    def content(self, value: Value) -> None:
        self._refuse_made_before(value)
        super().content(value)

    def attribute(self, value: Value, name: str) -> None:
        self._refuse_made_before(value)
        super().attribute(value, name)

    def cell(self, cell: CellValue) -> None:
        self._refuse_made_before(cell)
        super().cell(cell)

    def _refuse_made_before(self, value: Value) -> None:
        if value.source is None and id(value) in self.protected:
            raise _refused("changes an object that outlives it")

    def check(self) -> None:
        """Raises Unsupported unless everything that was there before is what it was."""
        for key, entry in self.touched.items():
            kind, value, name = entry
            same = key in self.before and self.before[key] == _contents(*entry)
            if not same and (key in self.before or not self._as_at_entry(kind, value, name)):
                what = value.describe(self.context) if isinstance(value, Value) else "a global variable"
                raise _refused(f"changes {what}", None if key in self.before else _until(kind, value, name))

    def _as_at_entry(self, kind: str, value: Any, name: str) -> bool:
        """Of something that had not been written to before: whether it holds what the real object holds."""
        if kind == "content" and isinstance(value, DictValue) and value.obj is not None:
            return list(value.obj) == list(value.entries) and all(
                self._is(real, value.entries[key], ItemSource(value.source, key))  # type: ignore[arg-type]
                for key, real in dict.items(value.obj)
            )
        if kind == "attribute" and isinstance(value, ObjectValue) and not isinstance(value, TensorValue):
            real = (value.instance_dict() or {}).get(name, MISSING)
            now = (value.attributes or {}).get(name, MISSING)
            if real is MISSING or now is MISSING:
                return False
            return self._is(real, now, ItemSource(value.dict_source, name))  # type: ignore[arg-type]
        return False

    def _is(self, real: Any, now: Any, source: ItemSource) -> bool:
        if type(now) is Lazy or now is self.context.wrapped.get(id(real)):
            return True
        if type(now) is SymbolicNumber:
            return now.source == source
        if not isinstance(now, ConstantValue) or not self.context.is_constant_object(real):
            return False
        return now.source == source or (type(now.value) is type(real) and bool(now.value == real))


def _until(kind: str, value: Any, name: str) -> Guard | None:
    """What holds as long as something is about to be made for the first time: an attribute, or the entries of a
    dictionary that is empty (the state of an optimizer)."""
    if not isinstance(value, ObjectValue) or value.source is None or value.obj is None:
        return None
    if kind == "attribute" and name not in (value.instance_dict() or (name,)):
        return Guard(value.dict_source, GuardKind.NOT_IN, name)  # type: ignore[arg-type]
    if kind == "content" and isinstance(value, DictValue) and not value.obj:
        return Guard(value.source, GuardKind.LENGTH, 0)
    return None


def _contents(kind: str, value: Any, name: str) -> Any:
    """What an entry of the log stands for, to be compared: values by identity."""
    if kind == "content" and isinstance(value, DictValue):
        return [(key, _identity(item)) for key, item in value.entries.items()]
    if kind == "attribute":
        return id((value.attributes or {}).get(name, MISSING))
    return object()  # equal to nothing: any change counts


def _identity(value: Value) -> int:
    return id(value.value or value) if isinstance(value, Lazy) else id(value)
