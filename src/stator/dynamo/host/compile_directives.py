"""Marks on single functions: record a call as one operation, call the function once, follow a substitute, or keep it
out of graphs. Covers stator's own marks and those set by torch.compiler, which are read without importing
torch._dynamo.

calling.py acts on the marks; nothing here captures.
"""

from __future__ import annotations

import enum
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from .compile_status import DISABLED_MARK


class Treatment(enum.Enum):
    """The way in which a call of a marked function is captured."""

    IN_GRAPH = "one operation of the graph, not followed"
    CONSTANT = "called once while capturing; its result is a constant"
    SUBSTITUTE = "another function is followed in its place"
    OUTSIDE = "the graph breaks at the call"


@dataclass(frozen=True, slots=True)
class Mark:
    """`replacement` and `folds` (run the original on constants) belong to SUBSTITUTE, `reason` to OUTSIDE."""

    treatment: Treatment
    replacement: Callable[..., Any] | None = None
    folds: bool = False
    reason: str = ""


_marks: dict[int, tuple[Any, Mark]] = {}  # by id: (weak reference to the function, or the function itself, mark)


def set_mark(function: Any, mark: Mark) -> None:
    """Mark a function permanently; a later mark replaces an earlier one."""
    if isinstance(function, MethodType):
        function = function.__func__
    key = id(function)
    try:
        held: Any = weakref.ref(function, lambda _: _marks.pop(key, None))
    except TypeError:
        held = function  # method descriptors have no weak references, and live as long as their class
    _marks[key] = held, mark


def mark_of(function: Any) -> Mark | None:
    """The mark of a function, class or C function; stator's marks precede those of torch.compiler. Runs no code of the
    function."""
    found = _marks.get(id(function))
    if found is not None:
        return found[1]
    return _of_torch(function)


# ---- how functions opted out of being compiled ----


def disabled(function: Any) -> str | None:
    """The opt-out of a Python function or method: "frame" (its own frame), "recursive" (its callees, too), or None."""
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        return None
    attributes = function.__dict__
    if not attributes:
        return None
    if attributes.get("_torchdynamo_disable"):
        return "frame" if attributes.get("_torchdynamo_disable_recursive") is False else "recursive"
    return attributes.get(DISABLED_MARK)


def frame_disabled_by_torch(callee: Any) -> Any:
    """The original of a wrapper by torch.compiler.disable(recursive=False), whose own frames run eagerly; None for
    other callables. (The wrapper itself is in a file that stator skips.)"""
    if disabled(callee) != "frame":
        return None
    wrapper = callee.__func__ if type(callee) is MethodType else callee
    inner = wrapper.__dict__.get("_torchdynamo_orig_callable")
    if type(inner) is MethodType and type(inner.__func__) is FunctionType:
        return inner
    if type(inner) is not FunctionType:
        return None
    return MethodType(inner, callee.__self__) if type(callee) is MethodType else inner


def made_by_torch_compile(function: FunctionType) -> bool:
    """Whether torch.compile made the function. Such a function has the original's name and module, so the origin of
    its globals decides."""
    return function.__globals__.get("__name__") == "torch._dynamo.eval_frame"


# The reasons with which torch disables functions of its own for torch.compile alone.
REASONS_OF_TORCH = frozenset(("don't trace into fused optimizer",))


def unwrap_torch_disable(function: FunctionType) -> Any:
    """The original of a function wrapped by torch.compiler.disable (or by torch's lazy wrapper), else the function."""
    if function.__code__ is _DISABLED_LATER:
        return dict(zip(_DISABLED_LATER.co_freevars, function.__closure__ or (), strict=True))["fn"].cell_contents
    return function.__dict__.get("_torchdynamo_orig_callable", function)


# The lazy wrapper. Importing torch._dynamo replaces torch.manual_seed by such a wrapper.
_DISABLED_LATER = torch._disable_dynamo(lambda: None).__code__


def without_module_tags(function: Any) -> Any:
    """The original of a method of nn.Module that torch.compile has replaced; other objects are returned unchanged.
    Where torch.compile first compiles, it replaces these methods for good, to tag new modules."""
    if type(function) is FunctionType and function.__module__ == "torch._dynamo.mutation_guard":
        held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        return next((held[name].cell_contents for name in ("init", "setstate") if name in held), function)
    return function


TAGGED_METHODS = frozenset(without_module_tags(one).__code__ for one in (nn.Module.__init__, nn.Module.__setstate__))


def without_options_of_torch(function: FunctionType) -> Any:
    """The original of a function that changes options of torch.compile around its call, which mean nothing to stator;
    None for other functions. Exported modules check their inputs by such a function."""
    if function.__module__ != "torch._dynamo.external_utils":
        return None
    if function.__qualname__ != "wrap_dunder_call_ctx_manager.<locals>.inner":
        return None
    held = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    around = type(held["self"].cell_contents)
    is_option = (around.__module__, around.__qualname__) == ("torch._dynamo.decorators", "DynamoConfigPatchProxy")
    return held["func"].cell_contents if is_option else None


def disabled_reason(function: FunctionType) -> str:
    """The reason given for the opt-out, or an empty text."""
    given = function.__dict__.get("_torchdynamo_disable_msg") or function.__dict__.get(f"{DISABLED_MARK}_reason")
    return str(given) if given else ""


# ---- marks by torch.compiler ----

_CONSTANT = Mark(Treatment.CONSTANT)
_IN_GRAPH = Mark(Treatment.IN_GRAPH)
_OUTSIDE = Mark(Treatment.OUTSIDE, reason="torch.compiler keeps the function out of graphs")


def _of_torch(function: Any) -> Mark | None:
    if type(function) is FunctionType:
        attributes = function.__dict__
        if attributes:
            if attributes.get("_dynamo_marked_constant"):
                return _CONSTANT
            if attributes.get("_dynamo_forbidden"):
                return _OUTSIDE
            region = attributes.get("__marked_compile_region_fn__")  # torch.compiler.nested_compile_region
            if region is not None:
                return Mark(Treatment.SUBSTITUTE, replacement=region)
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is None:
        return None
    key = id(function)
    if key in _ids(rules, "_disallowed_callable_ids"):
        return _OUTSIDE
    return _IN_GRAPH if key in _ids(rules, "_allowed_callable_ids") else None


def _ids(rules: Any, name: str) -> Any:
    """The ids in one of torch's tables of functions; empty if torch has not created the table."""
    return getattr(getattr(rules, name, None), "function_ids", None) or ()


def substitute_of_torch(function: Any) -> Mark | None:
    """The substitute that a program registered by torch.compiler.substitute_in_graph. The substitutes that torch itself
    registers are left out: they are loaded at any time, and do not check their arguments."""
    functions = sys.modules.get("torch._dynamo.variables.functions")
    polyfilled = getattr(functions, "PolyfilledFunctionVariable", None)
    if polyfilled is None:
        return None
    try:
        handler = polyfilled._get_polyfill_handlers().get(function)
    except (AttributeError, TypeError):
        return None
    replacement = getattr(handler, "__torch_dynamo_polyfill__", None)
    if type(replacement) is not FunctionType or replacement.__module__.startswith("torch._dynamo."):
        return None
    folds = bool(getattr(handler, "__torch_dynamo_can_constant_fold_through__", False))
    return Mark(Treatment.SUBSTITUTE, replacement=replacement, folds=folds)
