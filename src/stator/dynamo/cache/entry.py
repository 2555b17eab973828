"""The public side of the cache of compiled frames: makes the callable that replaces a function. csrc/entry.c binds
arguments and csrc/cache.c finds versions; compiled_frames.py handles misses."""

from __future__ import annotations

import functools
import opcode
import os
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

import torch

from stator.base.config import Options
from stator.dynamo.guards import size_guards as size_guards  # registers the guards on sizes
from stator.dynamo.guards import tensor_guards  # registers the guards on tensors and torch's state
from stator.dynamo.guards.type_only_guards import TENSORS
from stator.dynamo.host import debuggers as debuggers  # tells the C code which trace functions belong to debuggers
from stator.dynamo.host.hook import always_compile, code_marks, skip_files
from stator.dynamo.host.naming import OF_C
from stator.dynamo.host.native_status import native as _native
from stator.dynamo.host.native_status import warn_if_missing
from stator.dynamo.host.trusted_builtins import builtins_are_unchanged
from stator.dynamo.host.weak_references import hold_strongly
from stator.dynamo.ir.torch_state import modes_restored_on_interrupt, without_saved_tensor_hooks

from .compiled_frames import CacheMiss, CompiledFrame, CompileFrame, around_compilations, make_cache, reset
from .dynamic_sources import compare_layouts

__all__ = [
    "CompileFrame",
    "CompiledFrame",
    "cache_of",
    "is_entry",
    "make_entry",
    "make_hook_callback",
    "original",
    "reset",
    "set_gate",
]


def make_entry(
    function: FunctionType, compile_frame: CompileFrame, options: Options, *, fullgraph: bool = False
) -> Callable[..., Any]:
    """The compiled twin of `function`: equal signature, attributes passed through, works as a method.

    `compile_frame(function, {parameter: value})` is called if no compiled version fits the arguments. Its errors are
    passed on under `fullgraph`; otherwise the user gets one warning and the original runs from then on. Without the C
    extension the function itself is returned, with one warning.
    """
    if _native is None:
        warn_if_missing()
        return function
    cache = make_cache(function.__code__, compile_frame, options, fullgraph=fullgraph)
    return functools.update_wrapper(_native.Entry(function, cache), function)


def make_hook_callback(compile_frame: CompileFrame, options: Options) -> Callable[[FunctionType], Any]:
    """A callback for hook.call_with_hook that compiles the frames it meets by `compile_frame`. Make one per
    compilation context and keep it: calls with one callback share their versions, which die with it."""
    caches: dict[int, tuple[weakref.ref[CodeType], Any]] = {}  # by id: distinct code objects compare equal

    def callback(function: FunctionType) -> Any:
        if not builtins_are_unchanged() or _is_of_torch_compile(function.__code__):
            return None
        code = function.__code__
        if not _has_operations(code):
            return None
        cache = make_cache(code, compile_frame, options, as_function=False)
        caches[id(code)] = weakref.ref(code, functools.partial(_forget, caches, id(code))), cache
        return cache

    _hide_from_torch_compile(callback.__code__)
    return callback


def _forget(caches: dict[int, Any], key: int, _: object) -> None:
    caches.pop(key, None)


# of functions that return a constant or an argument: such code holds nothing to compile
_WITHOUT_OPERATIONS = frozenset(
    opcode.opmap[name]
    for name in (
        *("CACHE", "RESUME", "NOP", "POP_TOP", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_FAST_BORROW"),
        *("RETURN_VALUE", "RETURN_CONST"),
    )
    if name in opcode.opmap
)


def _has_operations(code: CodeType) -> bool:
    return not _WITHOUT_OPERATIONS.issuperset(code.co_code[::2])


def _is_of_torch_compile(code: CodeType) -> bool:
    """Whether torch.compile generated the code. Such code is compiled already, though it bears the user's file name."""
    return any(name.startswith(("__compiled_fn_", "__resume_at_")) for name in code.co_names)


def _hide_from_torch_compile(code: CodeType) -> None:
    """Let torch.compile run this code eagerly, if this version of torch supports that."""
    control = torch._C._dynamo.eval_frame
    if hasattr(control, "set_code_exec_strategy"):
        skip = control._FrameAction.SKIP
        control.set_code_exec_strategy(code, control._FrameExecStrategy(skip, skip))


TENSORS.append(torch.Tensor)
# The destructors of their subclasses for GPUs, written in C, leave weak references behind that point to freed memory
hold_strongly(torch.Stream)
hold_strongly(torch.Event)
compare_layouts.append(tensor_guards.changed_layout)
OF_C.append(type(torch._C._SDPBackend))  # the metaclass of classes made in C++
code_marks.append(_hide_from_torch_compile)
around_compilations.append(modes_restored_on_interrupt)
# around all of compilation: calibrating the layout of tensors runs operators on tensors of its own
around_compilations.append(without_saved_tensor_hooks)
_hide_from_torch_compile(CacheMiss.__call__.__code__)  # which also covers all callees, the whole compiler


TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
skip_files(TORCH_FOLDER)
# containers of modules: if one child breaks, the others are still compiled with their neighbours
for _kind in (
    torch.nn.Sequential,
    torch.nn.Transformer,
    torch.nn.TransformerDecoder,
    torch.nn.TransformerDecoderLayer,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
):
    always_compile(_kind.forward.__code__)
# torch.compile compiles its own functions, and its compiler must not be compiled
skip_files(os.path.join(TORCH_FOLDER, "_dynamo") + os.sep, with_callees=True)


def call_from_slot(slot: Any, shown: Callable[..., Any]) -> Any:
    """`__call__` for a class whose instances hold their callable in a slot. The class itself shows a function."""
    return slot if _native is None else _native.CallSlot(slot, shown)


def is_entry(value: object) -> bool:
    return _native is not None and type(value) is _native.Entry


def set_gate(entry: Any, call: FunctionType, gate: Any, otherwise: Callable[..., Any]) -> None:
    """A call of the function `call` runs the entry's function while the gate holds for the first argument. If the gate
    fails, `otherwise` is called with the arguments."""
    entry._stand_for(call, gate, otherwise)


def original(entry: Any) -> FunctionType:
    """The original function of an entry."""
    return entry._original


def cache_of(entry: Any) -> Any:
    """The Cache of an entry: `.versions` (each with `.guards`, `.code`, `.target`, `.hits`) and `.eager`."""
    return entry._cache
