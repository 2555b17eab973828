"""nn.Module instances, and Python modules (the `import` kind)."""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from stator.dynamo.guards.guard import GuardKind
from stator.dynamo.guards.source import AttrSource, InstanceDictSource, ItemSource, Source
from stator.dynamo.host.naming import class_name
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Recipe

from .base import CaptureContext, Reconstructor, Value, unsupported
from .constants import ConstantValue
from .containers.mappings import DictValue
from .functions import BoundMethodValue
from .objects import MISSING, ObjectValue, is_data_descriptor, set_through
from .scopes import GlobalScope

_STORES = ("_parameters", "_buffers", "_modules")
# torch's own: programs may replace these methods
_CALL, _CALL_IMPL = nn.Module.__call__, nn.Module._call_impl
_GETATTR, _SETATTR = nn.Module.__getattr__, nn.Module.__setattr__
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_GRAD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


class ModuleValue(ObjectValue):
    """An nn.Module. Parameters, buffers and submodules are read from their dictionaries, without `__getattr__`."""

    __slots__ = ("hooks_empty", "stored")

    def __init__(self, cls: type, obj: nn.Module | None, source: Source | None) -> None:
        super().__init__(cls, obj, source)
        self.stored: dict[str, Value] = {}
        self.hooks_empty: bool | None = None

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        found = self.stored.get(name)
        if found is not None and not (context.changed_dicts and self._stores_changed(context)):
            return found
        if name == "forward" and "_stator_compiled_class" in self.cls.__dict__:
            return self._plain_forward(context)
        if self._is_plain(context) and context.class_lookup(self.cls, name) is MISSING:
            # the instance dictionary cannot have a registered name: registration refuses names in use
            found = self._registered(context, name)
        return found if found is not None else super().get_attr(context, name)

    def _plain_forward(self, context: CaptureContext) -> Value:
        """`forward` of a compiled module, as the original module finds it."""
        own = self.own_attribute(context, "forward")
        if own is not None:
            return own
        made_from = self.cls.__dict__["_stator_compiled_class"]
        return context.bind(self, made_from, "forward", context.class_lookup(made_from, "forward"))

    def _is_plain(self, context: CaptureContext) -> bool:
        """Whether the class looks attributes up as nn.Module does."""
        return (
            context.class_lookup(self.cls, "__getattr__") is _GETATTR
            and context.class_lookup(self.cls, "__getattribute__") is object.__getattribute__
        )

    def missing_attr(self, context: CaptureContext, hook: Any, name: str) -> Value:
        if hook is not _GETATTR:
            return super().missing_attr(context, hook, name)
        return self.module_getattr(context, name)

    def module_getattr(self, context: CaptureContext, name: str) -> Value:
        """nn.Module.__getattr__."""
        return self._registered(context, name) or self._made_getattr(context, name)

    def _registered(self, context: CaptureContext, name: str) -> Value | None:
        """A parameter, buffer or submodule of a real module, or None."""
        real = self.instance_dict()
        if real is None:
            return None
        for store in _STORES:
            entries = real.get(store)
            if id(entries) in context.changed_dicts:
                held = self.own_attribute(context, store)
                found = held.find(context, name) if isinstance(held, DictValue) else None
                if found is not None:
                    return found
            elif entries is not None and name in entries and not self._store_changed(store):
                source = ItemSource(ItemSource(self.dict_source, store), name)  # type: ignore[arg-type]
                value = context.wrap_member(entries[name], source, store)
                self.stored[name] = value
                return value
        return None

    def _stores_changed(self, context: CaptureContext) -> bool:
        """Whether the captured code has written to the dictionaries of parameters, buffers or submodules."""
        real = self.instance_dict()
        return real is not None and any(id(real.get(store)) in context.changed_dicts for store in _STORES)

    def _store_changed(self, store: str) -> bool:
        return self.attributes is not None and store in self.attributes

    def _made_getattr(self, context: CaptureContext, name: str) -> Value:
        for store in _STORES:
            entries = self.own_attribute(context, store)
            found = entries.find(context, name) if entries is not None else None  # type: ignore[attr-defined]
            if found is not None:
                return found
        raise context.raised(AttributeError, f"'{class_name(self.cls)}' object has no attribute '{name}'")

    def set_own(self, context: CaptureContext, name: str, value: Any) -> None:
        if name in _STORES:
            self.stored.clear()
        super().set_own(context, name, value)

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        custom = context.class_lookup(self.cls, "__setattr__")
        if custom is not _SETATTR:
            super().set_attr(context, name, value)
        else:
            self.module_setattr(context, name, value)

    def module_setattr(self, context: CaptureContext, name: str, value: Value) -> None:
        """nn.Module.__setattr__."""
        kind = value.python_type(context)
        if issubclass(kind, (nn.Parameter, nn.Module)):
            self._register(context, name, value, "_modules" if issubclass(kind, nn.Module) else "_parameters")
            return
        for store in _STORES:
            entries = self.own_attribute(context, store)
            old = None if entries is None else entries.find(context, name)  # type: ignore[attr-defined]
            if old is not None:
                if store != "_buffers" and not context.is_none(value):
                    raise unsupported("module-registration", f"replacing {name!r} in {store} of {class_name(self.cls)}")
                entries.store(context, ConstantValue(name), value)  # type: ignore[union-attr]
                self.stored[name] = value
                return
        self.generic_set_attr(context, name, value)

    def _register(self, context: CaptureContext, name: str, value: Value, store: str) -> None:
        """Register a parameter or submodule in the place of other attributes of this name. A module from outside takes
        only values from outside."""
        outlives = self.source is not None and value.source is None
        if outlives or not self._registers_plainly(context, name, store):
            raise unsupported(
                "module-registration",
                f"registering {name!r} as a parameter or submodule of {class_name(self.cls)}",
                "create parameters and submodules in __init__",
            )
        if self.own_attribute(context, name) is not None:
            self.set_own(context, name, MISSING)
        for other in _STORES:
            entries = self.own_attribute(context, other)
            if not isinstance(entries, DictValue):
                raise unsupported("module-registration", f"registering {name!r} beside {other} of another kind")
            old = entries.find(context, name)
            if other == store and old is not value:
                entries.store(context, ConstantValue(name), value)
            elif other != store and old is not None:
                entries.drop(context, name)

    def _registers_plainly(self, context: CaptureContext, name: str, store: str) -> bool:
        """Whether nn.Module.__setattr__ only moves the name."""
        if store == "_parameters":
            method = context.class_lookup(self.cls, "register_parameter")
            if method is not nn.Module.register_parameter or context.class_lookup(self.cls, name) is not MISSING:
                return False
        unsaved = self.own_attribute(context, "_non_persistent_buffers_set")
        if unsaved is None or context.contains(unsaved, ConstantValue(name)):
            return False
        return not context.guards.registration_hooks()

    # -- calling --
    def call(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        # a compiled module inside another module is followed as its original
        made_from = self.cls.__dict__.get("_stator_compiled_class", self.cls)
        called = context.class_lookup(made_from, "__call__")
        if called is _CALL:
            return self.call_module(context, args, kwargs)
        if made_from is not self.cls:
            function = context.class_function(made_from, "__call__", called)
            return BoundMethodValue(function, self).call(context, args, kwargs)
        return super().call(context, args, kwargs)

    def call_module(self, context: CaptureContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """nn.Module.__call__: enters `forward` directly if there are no hooks."""
        plain = context.class_lookup(self.cls, "_call_impl") is _CALL_IMPL
        if not plain or self.own_attribute(context, "_call_impl") is not None:
            return self.get_attr(context, "_call_impl").call(context, args, kwargs)
        if self.no_hooks(context):
            forward = self.get_attr(context, "forward")
            return self._enter(context, forward, 2, args, kwargs)
        inner = BoundMethodValue(context.class_function(nn.Module, "_call_impl", _CALL_IMPL), self)
        return self._enter(context, inner, 1, args, kwargs)

    def _enter(
        self, context: CaptureContext, callee: Value, left_out: int, args: list[Value], kwargs: dict[str, Value]
    ) -> Value:
        """Call `callee`, where eager has `left_out` frames of torch in between."""
        context.enters_through(self, callee)
        context.entering_module = left_out
        try:
            return callee.call(context, args, kwargs)
        finally:
            context.entering_module = 0

    def no_hooks(self, context: CaptureContext) -> bool:
        real = self.instance_dict()
        if real is None:
            return False
        names = _HOOKS + _GRAD_HOOKS if torch.is_grad_enabled() else _HOOKS
        if (context.changed_dicts or context.mutations.entries) and self._hooks_changed(context, real, names):
            return False
        if self.hooks_empty is None:
            self.hooks_empty = not any(real[name] for name in names) and not context.guards.global_module_hooks()
            if self.hooks_empty:
                for name in names:
                    context.guard(ItemSource(self.dict_source, name), GuardKind.LENGTH, 0)  # type: ignore[arg-type]
                if real.get("_compiled_call_impl") is not None:
                    raise unsupported(
                        "nested-compile", f"{class_name(self.cls)} was compiled in place by nn.Module.compile"
                    )
        return self.hooks_empty

    def _hooks_changed(self, context: CaptureContext, real: dict[str, Any], names: tuple[str, ...]) -> bool:
        if any(context.mutations.wrote(self, name) for name in names):
            return True
        everywhere = [getattr(nn.modules.module, f"_global{name}") for name in names]
        return any(id(hooks) in context.changed_dicts for hooks in (*everywhere, *[real[name] for name in names]))


class PythonModuleValue(Value):
    """An imported module; its attributes are guarded like globals."""

    __slots__ = ("attributes", "module")

    def __init__(self, module: ModuleType, source: Source | None = None) -> None:
        self.source = source
        self.module = module
        self.attributes: dict[str, Value] = {}

    def python_type(self, context: CaptureContext) -> type:
        return type(self.module)

    def real(self) -> Any:
        return self.module

    def constant(self) -> Any:
        return self.module

    def key(self, context: CaptureContext) -> Any:
        return self.module

    def describe(self, context: CaptureContext) -> str:
        return f"the module {module_name(self.module)}"

    def get_attr(self, context: CaptureContext, name: str) -> Value:
        computed = self._computed(context, name)
        if computed is not MISSING:
            return context.bind(self, type(self.module), name, computed)
        found = self.attributes.get(name)
        if found is None:
            found = self.attributes[name] = self._read(context, name)
        return found

    def _computed(self, context: CaptureContext, name: str) -> Any:
        """The data descriptor in the module's class under this name (such as the switches of torch.backends), or
        MISSING."""
        kind = type(self.module)
        if kind is ModuleType:
            return MISSING
        found = context.class_lookup(kind, name)
        return found if found is not MISSING and is_data_descriptor(found) and name != "__dict__" else MISSING

    def _read(self, context: CaptureContext, name: str) -> Value:
        if name in vars(self.module):
            return self._scope(context).load(context, name)
        if type(vars(self.module).get("__getattr__")) is FunctionType and not self._is_of_torch():
            return context.call(self._scope(context).load(context, "__getattr__"), [ConstantValue(name)], {})
        if not hasattr(type(self.module), name):
            self._scope(context).rely_on_absence(context, "__getattr__", name)
        real = context.run_real(getattr, (self.module, name))
        if self.source is None:
            return context.known(real)
        return context.wrap(real, AttrSource(self.source, name))

    def _is_of_torch(self) -> bool:
        """Whether `__getattr__` of this module only imports submodules, as that of torch's packages does."""
        return module_name(self.module).partition(".")[0] == "torch"

    def set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        computed = self._computed(context, name)
        if computed is not MISSING:
            set_through(context, self, type(self.module), name, computed, value)
            return
        if type(getattr(type(self.module), "__setattr__")) is FunctionType:  # noqa: B009
            raise unsupported("attribute-write", f"attribute {name!r} of {self.describe(context)}, a setting of torch")
        self.attributes[name] = value
        self._scope(context).store(context, name, value)

    def _scope(self, context: CaptureContext) -> GlobalScope:
        source = None if self.source is None else InstanceDictSource(self.source)
        return context.scope_of(vars(self.module), source)

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        return ConstantRecipe(self.module)


def module_name(module: ModuleType) -> str:
    """`module.__name__` past `__getattribute__` of the module's class."""
    return str(ModuleType.__getattribute__(module, "__dict__").get("__name__"))
