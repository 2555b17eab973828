"""The guards of one capture, in the order in which capture relied on them. The callers decide what to guard;
guards/guard_tree.py checks guards.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from stator.base.errors import UserPlace
from stator.dynamo.guards.guard import Guard, GuardKind, Lookup, TensorGuard
from stator.dynamo.guards.source import ConstantSource, ModuleGlobalSource, Source
from stator.dynamo.host.iterator_state import keys_in_order
from stator.dynamo.host.naming import full_name
from stator.dynamo.ir.input_sizes import guarded_layout
from stator.dynamo.values.base import Value
from stator.dynamo.values.constants import SourcedConstant
from stator.dynamo.values.objects import ObjectValue
from stator.prims.record import TensorMeta

from . import wrapping

_OF_MODULES = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_OF_REGISTRATION = ("_global_module_registration_hooks", "_global_parameter_registration_hooks")


class GuardLog:
    """`place()` returns the user's current line."""

    def __init__(self, place: Callable[[], UserPlace]) -> None:
        self.made: list[Guard] = []
        self._place = place
        self._once: dict[tuple[int, str], Value] = {}  # keeps the values alive, so that their ids stay unique
        self._fixed: dict[int, Guard] = {}  # identity guards that only make parameters and buffers static
        self._present: list[tuple[SourcedConstant, UserPlace]] = []
        self._present_anyway: set[Source] = set()
        self._global_hooks: bool | None = None

    def add(self, source: Source, kind: GuardKind, expected: Any) -> None:
        if not isinstance(source, ConstantSource):
            self.made.append(Guard(source, kind, expected, self._place()))

    def tensor(self, source: Source, tensor: torch.Tensor, kind: type, layout: TensorMeta | None = None) -> None:
        """Rely on the metadata of a tensor of class `kind`. `layout`: its layout, if some of its sizes are symbols."""
        has_strides = tensor.layout in (torch.strided, torch.jagged)
        shape, stride = guarded_layout(tensor, layout) if has_strides else (tensor.shape, ())
        expected = TensorGuard(
            kind,
            tensor.dtype,
            tensor.device,
            _fixed(shape),
            _fixed(stride),
            tensor.requires_grad,
            torch._C._dispatch_keys(tensor).raw_repr() if tensor.is_conj() or tensor.is_neg() else None,
        )
        self.add(source, GuardKind.TENSOR, expected)

    def dict_keys(self, source: Source, real: dict[Any, Any]) -> bool:
        """Rely on all keys in order. False: only on their number, because some keys are no constants."""
        keys = tuple(keys_in_order(real))
        plain = all(map(_is_key_constant, keys))
        self.add(source, *((GuardKind.DICT_KEYS, keys) if plain else (GuardKind.LENGTH, len(keys))))
        return plain

    # ---- once for each object ----

    def _first(self, owner: Value, what: str) -> bool:
        before = len(self._once)
        self._once[id(owner), what] = owner
        return len(self._once) > before

    def keys_once(self, owner: ObjectValue, source: Source | None, real: dict[Any, Any]) -> None:
        if source is not None and self._first(owner, "keys"):
            self.dict_keys(source, real)

    def length_once(self, owner: ObjectValue, source: Source, length: int) -> None:
        if self._first(owner, "len"):
            self.add(source, GuardKind.LENGTH, length)

    def identity_once(self, value: Value) -> None:
        """Rely on the value's identity."""
        self._fixed.pop(id(value), None)
        if value.source is not None and self._first(value, "is"):
            self.add(value.source, GuardKind.IS, value.real())

    def fix(self, value: Value) -> None:
        """Rely on a tensor's identity, as long as the guard only makes the tensor static."""
        known = len(self.made)
        self.identity_once(value)
        if len(self.made) > known:
            self._fixed[id(value)] = self.made[-1] = replace(self.made[-1], movable=True)

    def unfix(self, value: Value) -> bool:
        """Undo `fix`. False: `fix` did nothing, or other code relies on the tensor's identity by now."""
        guard = self._fixed.pop(id(value), None)
        if guard is None:
            return False
        self.made = [kept for kept in self.made if kept is not guard]
        self._once.pop((id(value), "is"), None)
        return True

    def global_module_hooks(self) -> bool:
        """Whether there are global module hooks. Relies on their absence."""
        if self._global_hooks is None:
            module = torch.nn.modules.module
            self._global_hooks = any(getattr(module, f"_global_{name}") for name in _OF_MODULES)
            for name in () if self._global_hooks else _OF_MODULES:
                self.add(ModuleGlobalSource(module.__name__, f"_global_{name}"), GuardKind.LENGTH, 0)
        return self._global_hooks

    def registration_hooks(self) -> bool:
        """Whether there are global registration hooks of modules. Relies on their absence."""
        module = torch.nn.modules.module
        hooks = any(getattr(module, name) for name in _OF_REGISTRATION)
        for name in () if hooks else _OF_REGISTRATION:
            self.add(ModuleGlobalSource(module.__name__, name), GuardKind.LENGTH, 0)
        return hooks

    # ---- known when the capture ends ----

    def presence(self, value: SourcedConstant) -> None:
        """Rely on the presence of an entry, name or attribute, even if capture never reads its constant."""
        self._present.append((value, self._place()))

    def presence_known(self, source: Source) -> None:
        """Other guards imply that there is a value, and its type."""
        self._present_anyway.add(source)

    def add_presences(self) -> None:
        for value, place in self._present:
            implied = isinstance(value.source, ConstantSource) or value.source in self._present_anyway
            if not value.guarded and not implied:
                self.made.append(Guard(value.source, GuardKind.TYPE, type(value.peek()), place))  # type: ignore[arg-type]

    def add_lookups(self, lookups: Iterable[tuple[type, list[Lookup]]]) -> None:
        for cls, made in lookups:
            source = ConstantSource(full_name(cls), cls)
            self.made.append(Guard(source, GuardKind.LOOKUPS, tuple(made)))


def _is_key_constant(key: Any) -> bool:
    return wrapping.is_constant_object(key) or isinstance(key, (type, types.FunctionType, types.BuiltinFunctionType))


def _fixed(sizes: Iterable[Any]) -> tuple[Any, ...]:
    """Sizes, with None for those of a nested tensor, which stand for the tensor of its lengths."""
    return tuple([None if isinstance(size, torch.SymInt) else size for size in sizes])
