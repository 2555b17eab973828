"""Run-time checks of rules that users register. stator's own rules are checked by its tests instead, at no run-time
cost.

A wrong rule raises a `UsageError` with the operator, the rule's file and line, and the remedy.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from stator.base.errors import StatorError, UsageError

from .layout import is_unknown, surely
from .record import Decomposition, ShapeRule, TensorMeta, record

# Errors that a mistake in a rule raises. Others (RuntimeError, ValueError, IndexError, ...) may be eager's own.
MISTAKES = (AttributeError, NameError, TypeError, KeyError, ZeroDivisionError, AssertionError, RecursionError)

# A decomposition may use its own operator for a smaller case, up to this depth. Python's own limit would be reached in
# the middle of a tracer.
DEEPEST = 32

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep


def checked_shape_rule(target: OpOverload, rule: ShapeRule) -> ShapeRule:
    """Wrap a shape rule: refuse mistakes, and results that cannot be the operator's."""

    @functools.wraps(rule)
    def checked(*args: Any, **kwargs: Any) -> Any:
        with _mistakes_named(target, rule, "shape rule"):
            metas = rule(*args, **kwargs)
        if metas is not NotImplemented:
            problem = _not_results(target, metas, TensorMeta) or _not_a_layout(metas)
            if problem:
                _refuse(target, rule, "shape rule", problem)
        return metas

    return checked


def checked_decomposition(target: OpOverload, rule: Decomposition) -> Decomposition:
    """Wrap a decomposition: refuse mistakes, endless recursion, and results that do not fit the operator or its shape
    rule."""
    running = threading.local()

    @functools.wraps(rule)
    def checked(*args: Any, **kwargs: Any) -> Any:
        depth = running.depth = getattr(running, "depth", 0) + 1
        try:
            if depth > DEEPEST:
                _refuse(target, rule, "decomposition", f"comes back to {target} without end")
            with _mistakes_named(target, rule, "decomposition"):
                result = rule(*args, **kwargs)
        finally:
            running.depth -= 1
        if result is not NotImplemented:
            shape = record(target).shape
            problem = _not_results(target, result, torch.Tensor)
            problem = problem or (_other_sizes(result, shape(*args, **kwargs)) if shape is not None else "")
            if problem:
                _refuse(target, rule, "decomposition", problem)
        return result

    return checked


def place_of(rule: Callable[..., Any]) -> str:
    """Return a function's location: 'File "...", line N, in name'."""
    origin = inspect.unwrap(rule)
    code = getattr(origin, "__code__", None)
    if code is None:
        return repr(origin)
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_qualname}'


def raised_at(error: BaseException) -> str | None:
    """Return the innermost location of an error outside of torch and stator."""
    found, step = None, error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith((_HERE, _TORCH)):
            found = f'File "{code.co_filename}", line {step.tb_lineno}, in {code.co_qualname}'
        step = step.tb_next
    return found


@contextmanager
def _mistakes_named(target: OpOverload, rule: Callable[..., Any], what: str) -> Iterator[None]:
    try:
        yield
    except StatorError:
        raise
    except MISTAKES as error:
        place = raised_at(error) or place_of(rule)
        raise UsageError(
            f"the {what} of {target} ({place}) raised {type(error).__name__}: {error}; it may return "
            "NotImplemented for a case that it does not cover"
        ) from error


def _refuse(target: OpOverload, rule: Callable[..., Any], what: str, problem: str) -> NoReturn:
    raise UsageError(f"the {what} of {target} ({place_of(rule)}) {problem}")


def _not_results(target: OpOverload, results: Any, kind: type) -> str:
    """Return the reason why these cannot be the operator's results, with tensors of class `kind`; empty if they can."""
    returns = target._schema.returns
    if len(returns) != 1:
        if not isinstance(results, (tuple, list)) or len(results) != len(returns):
            return f"returns {_told(results)} where the operator has {len(returns)} results"
        parts = list(results)
    else:
        parts = [results]
    for part, declared in zip(parts, returns, strict=True):
        declared_type = str(declared.type)
        fits = {
            "Tensor": isinstance(part, kind),
            "Optional[Tensor]": part is None or isinstance(part, kind),
            "List[Tensor]": isinstance(part, (tuple, list)) and all(isinstance(one, kind) for one in part),
        }.get(declared_type, True)
        if not fits:
            return f"returns {_told(part)} where the operator returns {declared_type}: give a {kind.__name__} for each"
    return ""


def _told(value: Any) -> str:
    return f"{len(value)} results" if type(value) is tuple else f"a {type(value).__name__}"


def _not_a_layout(metas: Any) -> str:
    for meta in _parts(metas, TensorMeta):
        if not isinstance(meta.dtype, torch.dtype) or not isinstance(meta.device, torch.device):
            return f"returns a TensorMeta of {meta.dtype!r} on {meta.device!r}: give a torch.dtype and a torch.device"
        if not isinstance(meta.shape, tuple) or not isinstance(meta.stride, tuple):
            return "returns a TensorMeta whose shape or stride is not a tuple (x.stride() is one, x.stride is not)"
        if len(meta.shape) != len(meta.stride):
            return f"returns a TensorMeta of {len(meta.shape)} sizes and {len(meta.stride)} strides"
    return ""


def _other_sizes(results: Any, metas: Any) -> str:
    """Return the sizes in which a decomposition and a shape rule differ. Sizes that depend on data are not compared."""
    if metas is NotImplemented:
        return ""
    expected, given = _parts(metas, TensorMeta), _parts(results, torch.Tensor)
    for meta, tensor in zip(expected, given, strict=False):
        known = [
            (mine, other)
            for mine, other in zip(tensor.shape, meta.shape, strict=False)
            if not is_unknown(mine) and not is_unknown(other)
        ]
        if tensor.dim() != len(meta.shape) or not all(surely(mine == other) for mine, other in known):
            return f"returns a tensor of size {tuple(tensor.shape)} where the shape rule says {tuple(meta.shape)}"
    return ""


def _parts(value: Any, kind: type) -> list[Any]:
    if isinstance(value, kind):
        return [value]
    if isinstance(value, (tuple, list)):
        return [part for one in value for part in _parts(one, kind)]
    return []
