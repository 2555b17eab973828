"""Directives by which a program steers its compilation: what to leave alone, to record whole, or to replace.
This file checks and notes the directives; dynamo obeys them.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from contextvars import Token
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch

from stator.base.errors import UsageError
from stator.dynamo.callables import original_of
from stator.dynamo.host import stance as stances
from stator.dynamo.host.compile_directives import Mark, Treatment, set_mark
from stator.dynamo.host.compile_status import DISABLED_MARK
from stator.dynamo.host.hook import call_with_hook, entries_off, skip_frame
from stator.dynamo.host.size_marks import Kind, SizeMark, mark_size
from stator.dynamo.host.stance import AssertNoRecompile

F = TypeVar("F", bound=Callable[..., Any])

_CO_SUSPENDABLE = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


# ---- stances ----


class set_stance(ContextDecorator):
    """Choose what to do where code would have to be compiled.

    "default": compile. "force_eager": run everything eagerly (compiled code is kept for later). "eager_on_recompile":
    use compiled code, run eagerly where no version fits. "fail_on_recompile": use compiled code, raise RecompileError
    where no version fits.

    `set_stance(name)` as a statement holds from then on, `with set_stance(name):` in the block, and `@set_stance(name)`
    while the function runs (for a coroutine function, in its coroutine). A stance belongs to the thread or asyncio task
    that set it, and to tasks that it starts. Raises UsageError for an unknown name.
    """

    def __init__(self, stance: str = "default") -> None:
        self.stance = stance
        self._tokens: list[Token[str]] = []
        self._first: Token[str] | None = stances.set_stance(stance)

    def __call__(self, function: F) -> F:  # type: ignore[override]
        self._undo()
        _require_callable("set_stance", function)
        return _in_block(function, lambda: set_stance(self.stance), "it changes the stance")

    def __enter__(self) -> set_stance:
        first, self._first = self._first, None
        self._tokens.append(first if first is not None else stances.set_stance(self.stance))
        return self

    def __exit__(self, *exception: object) -> None:
        stances.reset_stance(self._tokens.pop())

    def _undo(self) -> None:
        """As a decorator the stance holds only while its function runs: undo the statement."""
        first, self._first = self._first, None
        if first is not None:
            stances.reset_stance(first)


def _in_block(function: Any, block: Callable[[], Any], reason: str) -> Any:
    """Wrap a function so that each call runs in a block of its own. Captured code ends its graph there."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_coroutine(*args: Any, **kwargs: Any) -> Any:
            with block():
                return await function(*args, **kwargs)

        return _run_as_it_is(run_coroutine, reason)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return _run_as_it_is(run, reason)


def _run_as_it_is(wrapper: Any, reason: str) -> Any:
    """End the graph before a call of the wrapper, because captured code cannot follow a change of the stance."""
    set_mark(wrapper, Mark(Treatment.OUTSIDE, reason=reason))
    return wrapper


class assert_no_recompile(AssertNoRecompile):
    """A block, or a function, in which no compiled code may be compiled again:

        with stator.assert_no_recompile():
            for batch in batches:
                model(batch)

    Where the guards of all versions fail, RecompileError is raised instead of compiling. The error names the failed
    guard, with the old and the new value. If the program catches the error, it is raised again at the end of the block.
    Code that runs for the first time may be compiled. The assertion belongs to the thread or asyncio task of the block.

    `@stator.assert_no_recompile()` makes a block of each call (of a coroutine function, of its coroutine).
    """

    def __call__(self, function: F) -> F:
        _require_callable("assert_no_recompile", function)
        return _in_block(function, assert_no_recompile, "it asserts that nothing is compiled again")


# ---- leaving code alone ----


class disable(ContextDecorator):
    """Keep code from being compiled: `@disable`, `@disable()`, `disable(fn)`, or `with disable():`.

    recursive: leave all functions that the function calls alone too; otherwise only the function itself.
    reason: shown where a graph breaks at the function.
    In the `with` form, compiled functions that are called in the block run eagerly. A module is changed in place (its
    `forward` is replaced on the instance) and returned; of a class, `__init__` and `__call__` are replaced.
    """

    def __new__(cls, fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
        return super().__new__(cls) if fn is None else _disable(fn, recursive, reason)

    def __init__(self, fn: None = None, recursive: bool = True, *, reason: str | None = None) -> None:
        self.recursive, self.reason = recursive, reason
        self._tokens: list[Token[str]] = []

    def __call__(self, function: Any) -> Any:
        return _disable(function, self.recursive, self.reason)

    def __enter__(self) -> disable:
        self._tokens.append(stances.set_stance(stances.FORCE_EAGER))
        return self

    def __exit__(self, *exception: Any) -> None:
        stances.reset_stance(self._tokens.pop())


def _disable(target: Any, recursive: bool, reason: str | None) -> Any:
    target = original_of(target)
    if isinstance(target, torch.nn.Module):
        target.forward = DisabledForward(target.forward) if recursive else _disable(target.forward, False, reason)
        return target
    if not callable(target):
        raise UsageError(f"stator.disable takes a function or module, not {type(target).__name__}: {target!r}")
    if isinstance(target, type):
        return _disable_class(target, recursive, reason)
    return _set_reason(reason, _run_disabled(target) if recursive else _disable_frame(target))


def _set_reason(reason: str | None, disabled: Any) -> Any:
    function = disabled.__func__ if isinstance(disabled, MethodType) else disabled
    if reason:
        setattr(function, f"{DISABLED_MARK}_reason", reason)
    return disabled


def _disable_class(cls: Any, recursive: bool, reason: str | None) -> Any:
    names = ("__init__", "__call__", *(("_call_impl",) if issubclass(cls, torch.nn.Module) else ()))
    for name in names:
        function = original_of(getattr(cls, name, None))
        if type(function) is FunctionType:
            setattr(cls, name, _disable(function, recursive, reason))
    return cls


def _call_disabled(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with entries_off():
        return call_with_hook(None, target, *args, **kwargs)


def _run_disabled(target: Any) -> Any:
    code = getattr(target.__func__ if isinstance(target, MethodType) else target, "__code__", None)
    flags = code.co_flags & _CO_SUSPENDABLE if code is not None else 0
    run = _WRAPPERS.get(flags, _disabled_call)(target)
    functools.update_wrapper(run, target)
    setattr(run, DISABLED_MARK, "recursive")
    return run


def _disabled_call(target: Any) -> Any:
    def run_disabled(*args: Any, **kwargs: Any) -> Any:
        return _call_disabled(target, args, kwargs)

    return run_disabled


def _disabled_coroutine(target: Any) -> Any:
    async def run_disabled(*args: Any, **kwargs: Any) -> Any:
        with disable():
            return await target(*args, **kwargs)

    return run_disabled


def _disabled_generator(target: Any) -> Any:
    def run_disabled(*args: Any, **kwargs: Any) -> Any:
        """Each step runs disabled; the consumer of the items does not."""
        generator = target(*args, **kwargs)
        step: Callable[..., Any] = generator.send
        arguments: tuple[Any, ...] = (None,)
        while True:
            try:
                item = _call_disabled(step, arguments, {})
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield item
            except GeneratorExit:
                _call_disabled(generator.close, (), {})
                raise
            except BaseException as error:
                step, arguments = generator.throw, (error,)
            else:
                step, arguments = generator.send, (sent,)

    return run_disabled


def _disabled_async_generator(target: Any) -> Any:
    async def run_disabled(*args: Any, **kwargs: Any) -> Any:
        """Each step runs disabled; the consumer of the items does not."""
        items = target(*args, **kwargs)
        step: Callable[..., Any] = items.asend
        argument: Any = None
        try:
            while True:
                with disable():
                    try:
                        item = await step(argument)
                    except StopAsyncIteration:
                        return
                try:
                    sent = yield item
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step, argument = items.athrow, error
                else:
                    step, argument = items.asend, sent
        finally:
            with disable():
                await items.aclose()

    return run_disabled


_WRAPPERS: dict[int, Callable[[Any], Any]] = {
    inspect.CO_COROUTINE: _disabled_coroutine,
    inspect.CO_GENERATOR: _disabled_generator,
    inspect.CO_ASYNC_GENERATOR: _disabled_async_generator,
}


class DisabledForward:
    """The `forward` of a module that must not be compiled. A copy of the module gets a copy of it."""

    def __init__(self, target: Callable[..., Any]) -> None:
        functools.update_wrapper(self, target, updated=())
        self.target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call_disabled(self.target, args, kwargs)


setattr(DisabledForward.__call__, DISABLED_MARK, "recursive")


def _disable_frame(target: Any) -> Any:
    """Leave this function's own frames alone; functions that it calls may be compiled."""
    function = target.__func__ if isinstance(target, MethodType) else target
    if type(function) is not FunctionType:
        raise UsageError(f"stator.disable(recursive=False) takes a function written in Python, not {target!r}")
    skip_frame(function.__code__)
    setattr(function, DISABLED_MARK, "frame")
    return target


# ---- sizes ----


def mark_dynamic(t: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None) -> None:
    """Promise that the size of a dimension (or of several) changes from call to call, so that the first compilation
    serves all sizes of at least 1, or all between `min` and `max`.

    The compilation raises ConstraintViolation if the program needs a single value of the size, or a part of the given
    range. The mark is an attribute of the tensor `t`; views and results have none. Raises UsageError for other
    arguments.
    """
    low, high = -math.inf if min is None else min, math.inf if max is None else max
    if low > high:
        raise UsageError(f"mark_dynamic: min {min} is larger than max {max}")
    _mark_sizes("mark_dynamic", t, dim, SizeMark(Kind.DYNAMIC, low, high))


def maybe_mark_dynamic(t: torch.Tensor, dim: int | Sequence[int]) -> None:
    """Like `mark_dynamic`, but compile for a single size where the program needs that."""
    _mark_sizes("maybe_mark_dynamic", t, dim, SizeMark(Kind.PREFERRED))


def mark_static(t: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Compile anew for each size of a dimension, of several, or (None) of all, also under `dynamic=True`. In compiled
    code: rely on the size from here on."""
    _mark_sizes("mark_static", t, range(t.dim()) if dim is None else dim, SizeMark(Kind.STATIC))


def mark_unbacked(t: torch.Tensor, dim: int | Sequence[int]) -> None:
    """Treat the size like one that depends on data: it may also be 0 or 1, and no branch of the program may depend on
    it. Otherwise the graph breaks, and an operator relies on sizes other than 0 and 1."""
    _mark_sizes("mark_unbacked", t, dim, SizeMark(Kind.UNBACKED))


def _mark_sizes(name: str, t: torch.Tensor, dims: int | Sequence[int], mark: SizeMark) -> None:
    if not isinstance(t, torch.Tensor):
        raise UsageError(f"{name} takes a tensor, not {type(t).__name__}")
    for dim in (dims,) if isinstance(dims, int) else tuple(dims):
        if not isinstance(dim, int) or not -t.dim() <= dim < t.dim():
            raise UsageError(f"{name}: a tensor of {t.dim()} dimensions has no dimension {dim!r}")
        mark_size(t, dim % t.dim(), mark)


# ---- single functions ----


def graph_break(msg: str = "") -> None:
    """End the graph here and go on in another graph; under `fullgraph=True` raise an error with `msg`. No effect
    eagerly."""


def allow_in_graph(function: Any) -> Any:
    """Record calls of `function` as one operation of the graph, without following it; backends trace through it.

    It must take tensors, numbers, text and containers of these, return tensors (or a tuple or list of tensors), change
    nothing else, and use no tensor but its arguments: none of this is checked. Also takes a list or tuple of functions.
    Returns its argument. For a function that must stay opaque to all stages, use a custom operator
    (`torch.library.custom_op`).
    """
    if isinstance(function, (list, tuple)):
        return type(function)(allow_in_graph(each) for each in function)
    _require_callable("allow_in_graph", function)
    set_mark(function, Mark(Treatment.IN_GRAPH))
    return function


def assume_constant_result(function: F) -> F:
    """Call `function` once while capturing, and treat its result as a constant from then on. Returns `function`.

    Nothing checks that the result stays constant. Arguments must be constants, or objects from outside of the captured
    code, whose identity is then guarded.
    """
    _require_callable("assume_constant_result", function)
    set_mark(function, Mark(Treatment.CONSTANT))
    return function


def substitute_in_graph(
    original: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[F], F]:
    """Decorator: follow the decorated Python function wherever captured code calls `original`, perhaps written in C.

    Both must take the same arguments and do the same. The decorated function, called by itself, calls `original`.
    can_constant_fold_through: `original` is pure; captured code calls it on constants.
    skip_signature_check: do not compare the two signatures. Raises UsageError where they differ.
    """
    _require_callable("substitute_in_graph", original)

    def decorate(replacement: F) -> F:
        if type(replacement) is not FunctionType:
            raise UsageError(f"stator.substitute_in_graph decorates a function written in Python, not {replacement!r}")
        if not skip_signature_check:
            _compare_signatures(original, replacement)
        mark = Mark(Treatment.SUBSTITUTE, replacement=replacement, folds=can_constant_fold_through)
        set_mark(original, mark)

        @functools.wraps(replacement)
        def call_original(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs)

        set_mark(call_original, mark)
        return call_original  # type: ignore[return-value]

    return decorate


def _compare_signatures(original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):
        return  # functions written in C need not have one
    shapes = [
        [(p.name, p.kind, p.default is p.empty) for p in signature.parameters.values()]
        for signature in (wanted, inspect.signature(replacement))
    ]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"{replacement.__name__}{inspect.signature(replacement)} cannot stand for {original!r}, whose signature is "
            f"{wanted}; pass skip_signature_check=True if that is right"
        )


def _require_callable(name: str, function: object) -> None:
    if not callable(function):
        raise UsageError(f"stator.{name} takes a function, not {type(function).__name__}: {function!r}")


for _changes_the_stance in (set_stance, disable, assert_no_recompile, AssertNoRecompile):
    set_mark(_changes_the_stance, Mark(Treatment.OUTSIDE, reason="it changes what may be compiled"))
