"""Copies by `contiguous` and `reshape` that eager makes views where a size is 1. One version serves all sizes unless a
difference would show: a write to shared memory, two tensors that leave the graph, or another order of elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator.base.errors import UserPlace
from stator.dynamo.ir.capture_assumptions import operation_name
from stator.dynamo.values.tensors.tensor import TensorValue
from stator.graph.fake.fake_tensor import FakeTensor
from stator.graph.fake.wrapper_subclasses import storages_of
from stator.graph.ir.size_bindings import symbols_of
from stator.prims.layout import always_equal, contiguous_strides

# Functions whose results are row-major, or laid out by other operands, whatever the layout of these tensors is
_PRODUCTS = frozenset(("matmul", "bmm", "baddbmm", "mm", "mv", "addmm", "linear", "einsum"))
_READERS = _PRODUCTS | {"grid_sample", "gather", "index_select", "layer_norm", "softmax", "log_softmax", "__setitem__"}
_OF_LAYOUTS = frozenset(("stride", "is_contiguous", "storage_offset", "data_ptr"))
_PARTS = frozenset(("getitem", "split", "chunk", "unbind"))
_VIEWS = _PARTS | {"transpose", "permute", "unsqueeze", "expand", "view", "mT", "T", "swapaxes"}
# Functions whose results are laid out as operands are
_ELEMENTWISE = frozenset(("add", "sub", "mul", "div", "truediv", "pow", "neg", "normalize"))
# ... or in a part of their memory, or in memory of their own as operands may be
_APART = _ELEMENTWISE | {"reshape", "flatten", "__getitem__", "clone", "mean", "sum"}


class PossibleView:
    """A copy of which `is_view` asks, and relies on the answer, whether eager makes a view. `alike`: the elements of
    such a view lie in the order of the copy."""

    def __init__(
        self, source: FakeTensor, made: FakeTensor, is_view: Callable[[], bool], alike: bool, place: UserPlace
    ) -> None:
        self.source, self.made, self.is_view, self.alike, self.place = source, made, is_view, alike, place
        self._versions = self._written()
        self.asked: set[int] = set()  # memory whose layout the program asked for

    def note_question(self, target: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Note a function that tells the program the layout of one of these tensors."""
        if operation_name(target) in _OF_LAYOUTS:
            self.asked |= {id(one.fake_storage) for one in tensors if isinstance(one, FakeTensor)}

    def _written(self) -> tuple[int, int]:
        return self.source.fake_storage.version, self.made.fake_storage.version

    @property
    def was_written(self) -> bool:
        """Whether the memory of the source or of the copy was written to since."""
        return self._written() != self._versions


def settle_views(recorder: Any, leaving: Sequence[TensorValue]) -> None:
    """Ask where the answer shows to a program that gets the tensors `leaving`. Raises Retry, for a capture with
    constants, if the present sizes give a view."""
    views: Sequence[PossibleView] = recorder.mode.copies
    if not views:
        return
    first: dict[int, int] = {}  # by memory of a copy: the memory that a chain of copies begins with
    for view in views:
        first[id(view.made.fake_storage)] = first.get(id(view.source.fake_storage), id(view.source.fake_storage))
    held = {id(memory) for value in (*recorder.input_values, *leaving) for memory in storages_of(value.fake)}
    holders = Counter(first.get(memory, memory) for memory in held)
    written = {first[id(view.made.fake_storage)] for view in views if view.was_written}
    environment = recorder.numbers.environment
    for view in views:
        memory, value = id(view.made.fake_storage), recorder.by_fake.get(id(view.made))
        shown = held | view.asked
        read = memory in shown or (value is not None and _shows_layout(value.node, shown))
        shows = not view.alike and read
        if first[memory] not in written and holders[first[memory]] < 2 and not shows:
            continue
        with environment.located(lambda place=view.place: place):
            if view.is_view():
                fixed = [one for one in symbols_of(view.source.meta) if environment.simplify(one).constant is not None]
                recorder.numbers.need_constants("a view of one row", fixed)


def _shows_layout(node: fx.Node, shown: Set[int]) -> bool:
    """Whether any but such a function reads a tensor, its views, or results for each element whose memory is not
    `shown`: other results may be laid out as it is, if they have two dimensions."""
    for user in node.users:
        name = operation_name(user.target)
        name = str(user.args[1]) if name == "getattr" else name
        operands = *user.args[:3], *[user.kwargs.get(given) for given in ("query", "key", "value")]
        is_mask = name == "scaled_dot_product_attention" and node not in operands
        if name in _READERS or is_mask or _is_new_line(user, node) or _follows_another(user, node):
            continue
        apart = name in _APART and not {id(one) for one in storages_of(user.meta["example_value"])} & shown
        if not (name in _VIEWS or apart) or _shows_layout(user, shown):
            return True
    return False


def _is_new_line(user: fx.Node, node: fx.Node) -> bool:
    """Whether the result of torch's function is one tensor of at most one dimension, but for sizes of 1, in memory of
    its own."""
    made, read = (one.meta.get("example_value") for one in (user, node))
    if not isinstance(made, FakeTensor) or not isinstance(read, FakeTensor) or isinstance(user.target, OpOverload):
        return False
    dims = sum(not always_equal(size, 1) for size in made.shape)
    return dims < 2 and made.fake_storage is not read.fake_storage


def _follows_another(user: fx.Node, node: fx.Node) -> bool:
    """Whether the result is laid out as the first operand, another tensor of its shape in row-major order."""
    first = user.args[0] if operation_name(user.target) in _ELEMENTWISE and user.args else None
    if not isinstance(first, fx.Node) or first is node:
        return False
    made, leading = (one.meta.get("example_value") for one in (user, first))
    if not isinstance(made, FakeTensor) or not isinstance(leading, FakeTensor):
        return False
    return always_equal(tuple(leading.shape), tuple(made.shape)) and always_equal(
        tuple(leading.stride()), contiguous_strides(tuple(made.shape))
    )
