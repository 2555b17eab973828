"""Tensors of a class of the program's own: Python's attribute lookup on the class, and a plain tensor of the graph.

A call of a torch function with such a tensor goes to the class's `__torch_function__`. Where torch would not ask for
it, the graph works on the plain tensor. interpreter/torch_overrides.py decides this.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from stator.dynamo.guards.source import CallSource, ConstantSource, Source
from stator.dynamo.host.torch_overrides import DISABLED, of_class, plain_attribute, plain_tensor
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe, call_recipe
from stator.dynamo.values.base import CaptureContext, Handler, Reconstructor, Value, unsupported
from stator.dynamo.values.containers.mappings import DictValue
from stator.dynamo.values.functions import BuiltinValue
from stator.dynamo.values.objects import C_METHODS, MISSING, IdentityKey, ObjectValue
from stator.graph.fake.wrapper_subclasses import has_own_functions, is_wrapper_class

from .tensor import TensorValue

# Attributes that belong to the program's tensor object, not to its memory.
_OF_THE_OBJECT = frozenset({"grad", "is_leaf", "grad_fn", "_base", "retains_grad", "output_nr"})
_TORCH_S = (torch.Tensor, torch._C.TensorBase)  # the classes whose methods ask for `__torch_function__`


class TensorSubclassValue(ObjectValue):
    """A tensor of class `cls`. `tensor` is the plain tensor on its memory, made when the graph first needs it."""

    __slots__ = ("tensor",)

    def __init__(
        self, cls: type, tensor: TensorValue | None, obj: torch.Tensor | None = None, source: Source | None = None
    ) -> None:
        super().__init__(cls, obj, source)
        self.tensor = tensor

    def describe(self, context: CaptureContext) -> str:
        return f"a tensor of class {self.cls.__qualname__}" + (f" ({self.source})" if self.source else "")

    def key(self, context: CaptureContext) -> Any:
        """Tensors hash and compare by identity as keys."""
        if self.obj is None:
            return IdentityKey(self)
        context.guards.identity_once(self)
        return self.obj

    def plain(self, context: CaptureContext) -> TensorValue:
        """The plain tensor. That of an input is made anew at each call."""
        if self.tensor is None:
            assert self.obj is not None and self.source is not None
            real = plain_tensor(self.obj)
            fake = context.recorder.mode.from_real(real)
            self.tensor = TensorValue(fake, None, CallSource(plain_tensor, (self.source,)), real)
            context.recorder.wrap_input(self.tensor)
            context.recorder.owners[id(self.tensor)] = self
        return self.tensor

    def plain_attr(self, context: CaptureContext, name: str) -> Value | None:
        """An attribute of the program's tensor object, past `__torch_function__`; None: the plain tensor has it."""
        if name not in _OF_THE_OBJECT:
            return None
        if self.obj is None or self.source is None:
            if name == "is_leaf" and not self.plain(context).fake.requires_grad:
                return context.constant(True)
            raise unsupported("attribute", f"`.{name}` of a tensor made inside the graph")
        return context.wrap(plain_attribute(self.obj, name), self.plain_source(name))

    def plain_source(self, name: str) -> Source:
        """The source of an attribute of the program's tensor object, read past `__torch_function__`."""
        assert self.source is not None
        return CallSource(plain_attribute, (self.source, ConstantSource(repr(name), name)))

    # -- lookup on the class --
    def slot(self, context: CaptureContext, name: str, descriptor: Any) -> Value:
        if descriptor.__objclass__ not in _TORCH_S:
            return super().slot(context, name, descriptor)
        return context.call(BuiltinValue(descriptor.__get__), [self], {})

    def generic_set_attr(self, context: CaptureContext, name: str, value: Value) -> None:
        in_class = context.class_lookup(self.cls, name)
        if name == "__dict__" and type(value) is DictValue and value.source is None and self.obj is None:
            self.attributes = {context.constant_of(key, "a name"): item for key, item in value.items(context)}
            context.mutations.freeze(value, "a dictionary that became a tensor's __dict__", context.end_step())
        elif isinstance(in_class, types.GetSetDescriptorType) and in_class.__objclass__ in _TORCH_S:
            context.call(BuiltinValue(in_class.__set__), [self, value], {})
        else:
            super().generic_set_attr(context, name, value)

    def builtin_method(self, context: CaptureContext, name: str) -> Handler | None:
        in_classes = (base.__dict__.get(name) for base in self.cls.__mro__)
        method = next((found for found in in_classes if isinstance(found, C_METHODS)), None)
        if getattr(method, "__objclass__", None) not in _TORCH_S:
            return super().builtin_method(context, name)
        return lambda context, *args, **kwargs: context.call(BuiltinValue(method), list(args), kwargs)

    def truth(self, context: CaptureContext) -> bool:
        return context.truth(context.call(self.torch_method(context, "__bool__"), [], {}))

    def get_item(self, context: CaptureContext, key: Value) -> Value:
        return context.call(self.torch_method(context, "__getitem__"), [key], {})

    def set_item(self, context: CaptureContext, key: Value, value: Value) -> None:
        context.call(self.torch_method(context, "__setitem__"), [key, value], {})

    def torch_method(self, context: CaptureContext, name: str) -> Value:
        """A special method, bound: torch's own or that of the program's class."""
        return context.bind(self, self.cls, name, context.class_lookup(self.cls, name))

    def recipe(self, reconstructor: Reconstructor) -> Recipe:
        if self.source is not None:
            return Load(self.source)
        assert self.tensor is not None
        made = call_recipe(of_class, reconstructor.recipe(self.tensor), ConstantRecipe(self.cls))
        return reconstructor.made_of_class(self, made)


def override_of(context: CaptureContext, value: Value) -> Any:
    """The raw `__torch_function__` of a tensor's class; MISSING if torch does not ask for it."""
    kind = value.python_type(context)
    if is_wrapper_class(kind) and not has_own_functions(kind):
        return MISSING
    found = MISSING if kind is torch.Tensor else context.class_lookup(kind, "__torch_function__")
    return MISSING if found is DISABLED else found
