"""Decides how capture answers a call: by a registered handler, as an operation of torch, by running a pure function on
constants, or by inlining. The handlers themselves are in handlers/.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch

from stator.base.registry import Registry
from stator.dynamo.graph.graph_builder import NotATensorCall
from stator.dynamo.graph.number_reads import may_be_read, read_list
from stator.dynamo.guards.placements import is_placement_class
from stator.dynamo.host.compile_directives import (
    REASONS_OF_TORCH,
    Mark,
    Treatment,
    disabled,
    disabled_reason,
    made_by_torch_compile,
    mark_of,
    substitute_of_torch,
    unwrap_torch_disable,
    without_options_of_torch,
)
from stator.dynamo.host.naming import full_name, module_of, qualified_name
from stator.dynamo.host.native_status import native
from stator.dynamo.host.numpy_boundary import is_pure_function
from stator.dynamo.values.base import CaptureContext, Handler, NotConstant, Value, unsupported
from stator.dynamo.values.classes import ClassValue
from stator.dynamo.values.constants import ConstantValue
from stator.dynamo.values.containers.iterators import IteratorValue
from stator.dynamo.values.containers.sequences import TupleValue
from stator.dynamo.values.deferred_text import number_text
from stator.dynamo.values.exceptions import ExceptionValue
from stator.dynamo.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from stator.dynamo.values.number_arithmetic import computed
from stator.dynamo.values.objects import C_METHODS, MISSING, ObjectValue, lookup_in_class, new_of_layout
from stator.dynamo.values.symbolic_numbers import SymbolicNumber
from stator.dynamo.values.tensors.tensor import REFUSED, TensorValue
from stator.graph.fake.wrapper_subclasses import is_wrapper_class
from stator.graph.ir.size_bindings import is_symbolic
from stator.graph.subgraphs.custom_autograd import graph_target
from stator.graph.torch_warnings import PythonWarning, python_warnings_raised

from .generators import GeneratorValue
from .torch_overrides import on_plain_tensors, overridden_call, overriding, takes_subclasses

F = TypeVar("F", bound=Callable[..., Any])
handlers: Registry[Any, Handler] = Registry("callable")
# Tensor methods that need more than one node: `handler(context, tensor, *args, **kwargs)`.
tensor_methods: Registry[str, Handler] = Registry("tensor method")
# Functions with a handler whose own code asks for `__torch_function__`.
ASKS_IN_PYTHON = frozenset({torch.autograd.grad, torch.autograd.backward})
# Closures that torch's functions return, by the id of their code: `handler(context, function, args, kwargs)`.
made_functions: dict[int, Callable[[Any, FunctionValue, list[Value], dict[str, Value]], Value]] = {}
# Functions of modules that stator never imports, by (module, qualified name).
named_handlers: Registry[tuple[str, str], Handler] = Registry("function by name")
# Pure functions, which capture runs for real if every argument is a constant.
foldable: set[Any] = set()
# Functions without parameters that have a constant answer in each capture, and no effect.
questions: set[Any] = set()
# Python functions of torch that become one node instead of being inlined.
leaves: set[Any] = set()
# Plain Python that capture follows in place of a C function, or of a function that is slow to follow.
replacements: dict[Any, Callable[..., Any]] = {}
# Answers calls of torch functions written in C; set by handlers/torch_calls/torch_functions.py.
torch_answer: list[Callable[[Any, Any, list[Value], dict[str, Value]], Value | None]] = []


def calls(*functions: Any) -> Callable[[F], F]:
    """Decorator: `handler(context, *args, **kwargs)` answers calls of these functions or classes."""
    return handlers.register(*functions)


def polyfill(*functions: Any) -> Callable[[F], F]:
    """Decorator: capture follows this Python function where the program calls one of `functions`."""

    def decorate(replacement: F) -> F:
        for function in functions:
            if function in replacements:
                raise ValueError(f"duplicate polyfill for {function!r}")
            replacements[function] = replacement
        return replacement

    return decorate


def standing_for(kind: type, generator: Any) -> Any:
    """In polyfills: the generator stands for a C iterator of this class, which cannot leave the graph."""
    return generator


def fold(*functions: Any) -> None:
    """Let capture run these pure functions for real on constants."""
    foldable.update(functions)


def _hashable_get(table: Any, key: Any) -> Any:
    try:
        return table.get(key)
    except TypeError:
        return None


def has_meaning_of_its_own(function: FunctionType) -> bool:
    """Whether a handler, a node or a polyfill answers calls of this function, instead of the function's code."""
    return (
        id(function.__code__) in made_functions
        or any(function in table for table in (handlers, leaves, replacements))
        or (function.__module__, function.__qualname__) in named_handlers
    )


def is_followed(function: FunctionType) -> bool:
    """Whether capture steps through the function's code where the program calls it."""
    own = has_meaning_of_its_own(function) or function in foldable or unwrap_torch_disable(function) in handlers
    of_compiler = function.__module__ in _OTHER_COMPILER or made_by_torch_compile(function)
    left = mark_of(function) is not None or disabled(function) is not None
    return native.called_as_usual(function) and not (own or of_compiler or left)


def function_call(
    context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a Python function."""
    real = function.fn
    if real is None:
        return context.inline(function, args, kwargs, called=True)
    if not native.called_as_usual(real):
        raise unsupported("call", f"{function.qualname}, whose call C code has replaced")
    handler = named_handlers.get((real.__module__, real.__qualname__))
    if handler is not None:  # before directives: torch marks its own graph_break, which optimizers call
        return context.call_handler(handler, args, kwargs)
    mark = mark_of(real)
    if mark is not None:
        return _marked_call(context, mark, function, args, kwargs)
    # at its first use torch.compile disables some functions of torch, such as the optimizers' `_init_group`
    handler = handlers.get(real) or _hashable_get(handlers, unwrap_torch_disable(real))
    if handler is not None:
        if real in ASKS_IN_PYTHON and overriding(context, args, kwargs):
            if torch._C._is_torch_function_enabled():
                return context.inline(function, args, kwargs, called=True)
            return on_plain_tensors(context, args, kwargs, functools.partial(_handled, context, handler))
        return context.call_handler(handler, args, kwargs)
    made = made_functions.get(id(real.__code__))
    if made is not None:
        return made(context, function, args, kwargs)
    if real in leaves:
        if overriding(context, args, kwargs):
            if torch._C._is_torch_function_enabled():
                return context.inline(function, args, kwargs, called=True)
            return on_plain_tensors(context, args, kwargs, functools.partial(_call_leaf, context, function))
        return _call_leaf(context, function, args, kwargs)
    if real in foldable:
        return run_folded(context, real, args, kwargs)
    replacement = replacements.get(real)
    if replacement is not None:
        return _replaced(context, real, replacement, args, kwargs)
    if disabled(real) is not None:
        reason = disabled_reason(real)
        if reason in REASONS_OF_TORCH:
            return context.call(context.known(unwrap_torch_disable(real)), args, kwargs)
        raise unsupported("disabled", f"{function.qualname} is kept from being compiled{reason and f': {reason}'}")
    if (original := without_options_of_torch(real)) is not None:
        return context.call(context.known(original), args, kwargs)
    if real.__module__ in _OTHER_COMPILER or made_by_torch_compile(real):
        raise unsupported("disabled", f"{real.__module__}.{function.qualname} belongs to torch's own compiler")
    return context.inline(function, args, kwargs, called=True)


def _handled(context: CaptureContext, handler: Handler, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return context.call_handler(handler, args, kwargs)


def _call_leaf(context: CaptureContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Record a Python function of torch as one node. Capture follows a function of neural networks that gets a float
    which changes between calls: its code asks about the float, and the operators inside take the float as it is.
    Likewise attention of symbolic sizes, whose parts ask for fewer constants in Python than in C++."""
    of_networks = function.fn.__module__ == torch.nn.functional.__name__  # type: ignore[union-attr]
    given = (*args, *kwargs.values())
    if (of_networks and any(map(_is_changing_float, given))) or (
        function.fn is torch.nn.functional.multi_head_attention_forward and any(map(_has_symbols, given))
    ):
        return context.inline(function, args, kwargs, called=True)
    name = function.name
    of_tensor = torch.Tensor.__dict__.get(name) is function.fn and (name in REFUSED or name in tensor_methods)
    if of_tensor and args and isinstance(args[0], TensorValue):
        return tensor_method_call(context, args[0], name, args[1:], kwargs)
    try:
        with python_warnings_raised():
            return context.record_function(function.fn, args, kwargs)
    except PythonWarning:  # so that each call warns at the user's line
        return context.inline(function, args, kwargs, called=True)


def _has_symbols(value: Value) -> bool:
    return isinstance(value, TensorValue) and is_symbolic(tuple(value.fake.shape))


def _is_changing_float(value: Value) -> bool:
    return type(value) is SymbolicNumber and value.kind is float and value.is_known


# modules whose functions drive another compiler; they run eagerly between two graphs
_OTHER_COMPILER = frozenset(
    {
        "torch.compiler",
        "torch._dynamo",
        "torch._dynamo.convert_frame",
        "torch._dynamo.decorators",
        "torch._dynamo.eval_frame",
        "torch._dynamo.trace_rules",
        "torch._inductor.cudagraph_trees",
    }
)


def builtin_call(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a function that is not Python code."""
    made = None if kwargs else computed(context, fn, args) or number_text(context, fn, args)
    if made is not None:
        return made
    mark = mark_of(fn)
    if mark is not None:
        return _marked_call(context, mark, context.known(fn), args, kwargs)
    if takes_subclasses(fn):
        overridden = overridden_call(context, fn, args, kwargs, functools.partial(builtin_call, context, fn))
        if overridden is not None:
            return overridden
    handler = _hashable_get(handlers, fn)
    if handler is not None:
        _check_arguments(fn, args, kwargs)
        return context.call_handler(handler, args, kwargs)
    replacement = _hashable_get(replacements, fn)
    if replacement is not None:
        return _replaced(context, fn, replacement, args, kwargs)
    for answer in torch_answer:
        answered = answer(context, fn, args, kwargs)
        if answered is not None:
            return answered
    if isinstance(fn, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return _unbound_method(context, fn, args, kwargs)
    if isinstance(fn, types.MethodWrapperType) and fn.__name__ == "__get__" and args and not kwargs:
        descriptor: Any = fn.__self__
        of_tensor = isinstance(descriptor, types.GetSetDescriptorType) and isinstance(args[0], TensorValue)
        if of_tensor and issubclass(torch.Tensor, descriptor.__objclass__):
            return context.get_attr(args[0], descriptor.__name__)  # torch.Tensor.shape.__get__(x)
        if type(descriptor) is classmethod and len(args) == 2 and type(descriptor.__func__) is FunctionType:
            return BoundMethodValue(context.known(descriptor.__func__), args[1])
    if fn in foldable or _is_constant_method(fn) or is_pure_function(fn):
        return run_folded(context, fn, args, kwargs)
    mark = substitute_of_torch(fn)
    if mark is not None:
        return _marked_call(context, mark, context.known(fn), args, kwargs)
    raise unsupported("call-builtin", f"calling {context.known(fn).describe(context)}")


def _replaced(
    context: CaptureContext, real: Any, replacement: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Follow Python code in the place of a function. A generator stands for an iterator of C code."""
    made = context.call(context.known(replacement), args, kwargs)
    kind = real if isinstance(real, type) else _MADE_BY.get(real)
    if kind is not None and isinstance(made, GeneratorValue):
        made.cls = kind
        if real not in _READ_AT_ONCE and all(_iterates_alike(context, one) for one in (*args, *kwargs.values())):
            made.made_by = real, args, kwargs
    return made


def _iterates_alike(context: CaptureContext, value: Value) -> bool:
    """Whether an iterator of the value that is made later gives the items of an iterator that is made now."""
    value = context.realized(value)
    known = isinstance(value, (ConstantValue, FunctionValue, BuiltinValue, IteratorValue, GeneratorValue))
    return known or value.python_type(context) in (list, tuple)


_READ_AT_ONCE = frozenset({itertools.product, itertools.combinations})  # read their arguments in the call itself


@calls(standing_for)
def _standing_for(context: CaptureContext, kind: ClassValue, generator: GeneratorValue) -> Value:
    generator.cls = kind.cls
    return generator


_MADE_BY: dict[Any, type] = {itertools.chain.from_iterable: itertools.chain}


def _check_arguments(fn: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Refuse arguments that the function itself would not take; handlers name their parameters as they like."""
    if fn not in _shapes:
        _shapes[fn] = _shape_of(fn)
    shape = _shapes[fn]
    if shape is not None and (len(args) > shape[0] or not shape[1].issuperset(kwargs)):
        raise unsupported("call-builtin", f"arguments of {fn.__name__}()")


def _shape_of(fn: Any) -> tuple[float, frozenset[str]] | None:
    """The number of positional arguments and the keywords that a function takes; None if they are unknown."""
    if module_of(type(fn)) != "builtins" or (getattr(fn, "__module__", None) or "").partition(".")[0] not in _STANDARD:
        return None
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return None
    kinds = inspect.Parameter
    if any(one.kind is kinds.VAR_KEYWORD for one in parameters):
        return None
    many = any(one.kind is kinds.VAR_POSITIONAL for one in parameters)
    positional = sum(one.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD) for one in parameters)
    named = frozenset(one.name for one in parameters if one.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY))
    return (float("inf") if many else positional), named


_shapes: dict[Any, tuple[float, frozenset[str]] | None] = {}
_STANDARD = frozenset({"builtins", "_operator", "itertools", "_functools", "math", "collections", "_collections"})


def _marked_call(
    context: CaptureContext, mark: Mark, callee: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a function with a compile directive, the program's or a library's."""
    context.guards.identity_once(callee)
    return _TREATMENTS[mark.treatment](context, mark, callee, args, kwargs)


def in_graph(context: CaptureContext, mark: Mark, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    real, recorder = callee.real(), context.recorder
    try:
        return recorder.record("call_function", real, real, args, kwargs)
    except NotATensorCall as call:
        if call.result is None:
            nodes = {name: recorder.lower(value)[0] for name, value in kwargs.items()}
            recorder.state_call(real, tuple(recorder.lower(value)[0] for value in args), nodes)
            return ConstantValue(None)
        raise unsupported(
            "torch-result", f"{callee.describe(context)}, which is allowed in graphs, gave no tensor"
        ) from None


def _as_constant(
    context: CaptureContext, mark: Mark, callee: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    what = f"an argument of {callee.describe(context)}, whose result is assumed to be constant"
    real_args = tuple(_unchanged(context, arg, what) for arg in args)
    real_kwargs = {name: _unchanged(context, arg, what) for name, arg in kwargs.items()}
    context.recorder.unlike_eager = True
    result = context.run_real(callee.real(), real_args, real_kwargs)
    return context.known(result)


def _unchanged(context: CaptureContext, value: Value, what: str) -> Any:
    """The real object of an argument; the frame must not have changed it."""
    value = context.realized(value)
    if isinstance(value, TensorValue):
        raise unsupported("not-constant", f"{what} is a tensor")
    if context.mutations.touches(value):
        raise unsupported("not-constant", f"{what} was changed in the captured code")
    real = context.real_of(value, what)
    if value.source is not None and not value.is_constant():
        context.guards.identity_once(value)
    return real


def _substituted(
    context: CaptureContext, mark: Mark, callee: Value, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if mark.folds and all(value.is_constant() for value in (*args, *kwargs.values())):
        return run_folded(context, callee.real(), args, kwargs)
    context.recorder.unlike_eager = True
    return context.call(context.known(mark.replacement), args, kwargs)


def _outside(context: CaptureContext, mark: Mark, callee: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("disabled", f"{callee.describe(context)}: {mark.reason}")


_TREATMENTS: dict[Treatment, Callable[..., Value]] = {
    Treatment.IN_GRAPH: in_graph,
    Treatment.CONSTANT: _as_constant,
    Treatment.SUBSTITUTE: _substituted,
    Treatment.OUTSIDE: _outside,
}


def _is_constant_method(fn: Any) -> bool:
    owner = getattr(fn, "__self__", None)
    return isinstance(owner, (str, bytes, int, float, complex, tuple, frozenset)) or any(
        owner is kind for kind in (str, bytes, int, float)
    )


def _unbound_method(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A C method that takes its object as the first argument: `list.append(items, x)`."""
    if not args or not issubclass(args[0].python_type(context), fn.__objclass__):
        raise unsupported("call-builtin", f"calling {fn.__qualname__} without an object that has it")
    owner = args[0]
    if isinstance(owner, TensorValue):
        return context.call_tensor_method(owner, fn.__name__, args[1:], kwargs)
    if isinstance(owner, ObjectValue):
        in_c = (base.__dict__.get(fn.__name__) for base in owner.cls.__mro__)
        if next((found for found in in_c if isinstance(found, C_METHODS)), fn) is not fn:
            raise unsupported("call-builtin", f"calling {fn.__qualname__} past {owner.describe(context)}'s own")
        handler = owner.builtin_method(context, fn.__name__)
        if handler is not None:
            return context.call_handler(handler, args, kwargs)
    if isinstance(owner, (ConstantValue, SymbolicNumber)):
        return owner.call_method(context, fn.__name__, args[1:], kwargs)
    raise unsupported("call-builtin", f"calling {fn.__qualname__} on {owner.describe(context)}")


def run_folded(context: CaptureContext, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    name = getattr(fn, "__qualname__", repr(fn))
    real_args = tuple(folded_argument(context, arg, name) for arg in args)
    real_kwargs = {key: folded_argument(context, arg, name) for key, arg in kwargs.items()}
    return context.wrap_result(context.run_real(fn, real_args, real_kwargs), f"the result of {name}")


def folded_argument(context: CaptureContext, value: Value, name: str) -> Any:
    try:
        return value.constant()
    except NotConstant:
        pass
    if isinstance(value, FunctionValue) and value.fn is not None:
        return value.fn
    if isinstance(value, TupleValue) and context.realize_items(value):
        return folded_argument(context, value, name)
    raise unsupported("call-builtin", f"{name} on {value.describe(context)}")


def class_call(context: CaptureContext, cls: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Call a class: by its handler, or by making an instance."""
    made = None if kwargs else computed(context, cls.cls, args) or number_text(context, cls.cls, args)
    if made is not None:
        return made
    mark = mark_of(cls.cls)
    if mark is not None and not issubclass(cls.cls, torch.autograd.Function):  # whose mark is meant for `apply`
        return _marked_call(context, mark, cls, args, kwargs)
    handler = handlers.get(cls.cls)
    if handler is not None:
        _check_arguments(cls.cls, args, kwargs)
        return context.call_handler(handler, args, kwargs)
    if cls.cls in foldable or is_placement_class(cls.cls):
        return run_folded(context, cls.cls, args, kwargs)
    replacement = replacements.get(cls.cls)
    if replacement is not None:
        return _replaced(context, cls.cls, replacement, args, kwargs)
    metaclass_call = context.class_lookup(type(cls.cls), "__call__")
    if type(metaclass_call) is FunctionType:
        handler = handlers.get(metaclass_call)
        if handler is not None:
            return context.call_handler(handler, [cls, *args], kwargs)
        function = context.class_function(type(cls.cls), "__call__", metaclass_call)
        context.enters_through(cls, function)
        return function.call(context, [cls, *args], kwargs)
    if metaclass_call is dict:  # the metaclass of a typed dictionary
        return context.call(context.known(dict), args, kwargs)
    if not isinstance(metaclass_call, types.WrapperDescriptorType):
        raise unsupported(
            "call", f"calling {cls.describe(context)}, whose metaclass has a __call__ that is no function"
        )
    return make_instance(context, cls, args, kwargs)


def make_instance(context: CaptureContext, cls: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """type.__call__: `__new__`, then `__init__` of the made object's class."""
    kind = cls.cls
    if issubclass(kind, torch.Tensor) and is_wrapper_class(kind):
        return _made_of_tensors(context, kind, args, kwargs)
    new = context.class_lookup(kind, "__new__")
    inner = new.__func__ if isinstance(new, staticmethod) else new
    if type(inner) is FunctionType:
        function = context.class_function(kind, "__new__", inner)
        made = function.call(context, [cls, *args], kwargs)
    elif inner is type.__new__:
        made = context.call(context.known(inner), [cls, *args], kwargs)
    elif isinstance(inner, types.BuiltinFunctionType):
        made = new_object(context, kind, args, kwargs)
    else:
        raise unsupported("new-object", f"__new__ of {qualified_name(kind)} is no function")
    made_kind = made.python_type(context)
    if kind in made_kind.__mro__:
        _initialize(context, made, made_kind, args, kwargs, plain_new=inner is object.__new__)
    return made


def _made_of_tensors(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A tensor that is made of other tensors, as an operation of the graph."""
    target = graph_target(kind, kind.__name__)
    made = context.record_function(target, args, kwargs)
    return made


def _initialize(
    context: CaptureContext,
    made: Value,
    kind: type,
    args: list[Value],
    kwargs: dict[str, Value],
    *,
    plain_new: bool,
) -> None:
    init = context.class_lookup(kind, "__init__")
    if not isinstance(init, types.WrapperDescriptorType):
        bound = (
            context.class_function(kind, "__init__", init)
            if type(init) is FunctionType
            else context.bind(made, kind, "__init__", init)
        )
        result = bound.call(context, [made, *args] if type(init) is FunctionType else args, kwargs)
        if not context.is_none(result):
            raise unsupported("call", f"__init__ of {qualified_name(kind)} that returns something")
    elif init is object.__init__:
        if (args or kwargs) and plain_new:
            raise unsupported("call-builtin", f"{qualified_name(kind)}() takes no arguments")
    elif isinstance(made, (ObjectValue, ExceptionValue)):
        handler = made.builtin_method(context, "__init__")
        if handler is not None:
            context.call_handler(handler, [made, *args], kwargs)


# `__new__` of built-in layouts: base class -> maker(context, cls, args, kwargs).
makers: Registry[type, Callable[..., Value]] = Registry("base class")
_ABSTRACT = 1 << 20  # Py_TPFLAGS_IS_ABSTRACT
_NO_INSTANCES = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION
_NO_INSTANCES = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION


def new_object(context: CaptureContext, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """object.__new__, or `__new__` of the built-in base class."""
    if context.class_lookup(kind, "__del__") is not MISSING:
        raise unsupported("new-object", f"making an instance of {qualified_name(kind)}, which has a finalizer")
    for base in kind.__mro__:
        if base in makers:
            return makers[base](context, kind, args, kwargs)
    if kind.__flags__ & _ABSTRACT:
        context.run_real(object.__new__, (kind,))  # which raises
    if new_of_layout(kind) is object.__new__ and not kind.__flags__ & _NO_INSTANCES:
        return ObjectValue(kind)
    raise unsupported("new-object", f"making an instance of {full_name(kind)}")


def tensor_method_call(
    context: CaptureContext, owner: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a method of torch.Tensor."""
    if overriding(context, args, kwargs):
        return context.call(context.known(lookup_in_class(torch.Tensor, name)), [owner, *args], kwargs)
    handler = tensor_methods.get(name)
    if handler is not None:
        return context.call_handler(handler, [owner, *args], kwargs)
    if name in REFUSED:
        known = context.recorder.known_value(owner.fake) if name in ("item", "tolist") else None
        if known is not None and (name == "tolist" or known.numel() == 1):
            return context.wrap_result(getattr(known, name)(), f"the result of Tensor.{name}")
        if name == "tolist" and context.loops.change_often(owner.fake.shape):
            what = f"Tensor.tolist() on {owner.describe(context)}, whose sizes change from call to call"
            raise unsupported("varying-length", what, "keep the values in a tensor, or pad to a few lengths")
        if name == "tolist" and may_be_read(context, owner, listed=True):
            return read_list(context.recorder, owner)
        raise unsupported(
            "data-dependent-value" if name in ("item", "tolist", "numpy") else "tensor-method",
            f"Tensor.{name}() on {owner.describe(context)}",
            "keep the value in a tensor, or call it outside of the compiled function",
        )
    return context.record_method(name, [owner, *args], kwargs)
