"""Judges compiled programs by eager execution: both get equal inputs, and all that a caller can see is compared.

`check` runs a program; `observe` and `assert_same` are its halves, for tests that run things in an order of their own;
`written` compares what goes on changing, `Counts` tells what was compiled, `corpus` collects programs for a test.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import io
import os
import random
import re
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import stator
from stator.base import counters

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far floating-point numbers may lie apart. Structure, types, layouts and integers are compared exactly."""

    relative: float
    absolute: float

    def at(self, size: float) -> float:
        return self.absolute + self.relative * size


EXACT = Tolerance(0.0, 0.0)
DOUBLE = Tolerance(1e-10, 1e-12)  # float64, sums in another order
ROUNDED = Tolerance(1e-6, 1e-6)  # float32, sums in another order
FUSED = Tolerance(1e-4, 1e-5)  # float32, products and exponentials in generated kernels
NARROW = Tolerance(2e-2, 2e-2)  # bfloat16 and float16: kernels round at other places
BY_BACKEND = {"eager": EXACT, "aot_eager": ROUNDED, "inductor": FUSED}

_ADDRESS = re.compile(r"\b0x[0-9a-f]+")
_NARROW = (torch.bfloat16, torch.float16)


@dataclasses.dataclass
class Program:
    """A function and the makers of its arguments; every call gets arguments of its own."""

    function: Function
    makers: tuple[Callable[[], Any], ...]

    def arguments(self) -> tuple[Any, ...]:
        return tuple(make() for make in self.makers)


def corpus() -> tuple[list[Any], Callable[..., Any]]:
    """A list of test parameters, and the decorator `@program(*makers of arguments)` that adds `Program`s to it."""
    programs: list[Any] = []

    def program(*makers: Callable[[], Any]) -> Callable[[Function], Function]:
        def register(function: Function) -> Function:
            programs.append(pytest.param(Program(function, makers), id=function.__name__.strip("_")))
            return function

        return register

    return programs, program


class Counts:
    """Graphs, breaks, compilations and other counts since this object was made; does not touch the counters."""

    def __init__(self) -> None:
        self._before = counters.counts.copy()

    def __getitem__(self, name: str) -> int:
        return counters.counts[name] - self._before[name]

    graphs = property(lambda self: self["graphs"])
    breaks = property(lambda self: self["graph_breaks"])
    compilations = property(lambda self: self["dynamo.compiled_frames"])


@dataclasses.dataclass
class Outcome:
    """All that a caller can see of one call."""

    arguments: tuple[Any, ...]
    result: Any = None
    error: BaseException | None = None
    lines: list[tuple[str, int | None]] = dataclasses.field(default_factory=list)  # that the error came through
    gradients: list[Any] = dataclasses.field(default_factory=list)
    log: list[Any] = dataclasses.field(default_factory=list)
    printed: str = ""
    warned: list[tuple[type, str]] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)  # warnings of stator itself
    random: tuple[int, ...] = ()  # hashes of the states of the generators
    modes: tuple[Any, ...] = ()  # grad mode, inference mode, default dtype

    def data(self) -> Any:
        """The parts that == compares exactly, as data that later calls cannot change."""
        return written([self.result, self.error, self.arguments, self.log, self.printed, self.modes])

    def memory(self) -> list[list[tuple[bool, bool]]]:
        """Which tensors of the arguments and the result are one object, and which share memory."""
        leaves = pytree.tree_leaves((self.arguments, self.result))
        tensors = [leaf for leaf in leaves if type(leaf) in (torch.Tensor, torch.nn.Parameter)]
        strided = [one for one in tensors if one.layout is torch.strided]
        where = [one.untyped_storage()._cdata for one in strided]
        return [
            [(one is other, here == there) for other, there in zip(strided[:at], where, strict=False)]
            for at, (one, here) in enumerate(zip(strided, where, strict=True))
        ]


def observe(
    function: Function, arguments: Sequence[Any] = (), *, gradients: bool = False, log: list[Any] | None = None
) -> Outcome:
    """Seed all generators and call the function. `log` is the list that the program writes its steps into.

    gradients: also differentiate the results by the leaves among the arguments.
    """
    seen = Outcome(tuple(arguments))
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    if log is not None:
        log.clear()
    output = io.StringIO()
    with contextlib.redirect_stdout(output), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            seen.result = function(*arguments)
        except Exception as error:
            seen.error = error
            entries = traceback.extract_tb(error.__traceback__)[1:]
            seen.lines = [(entry.name, entry.lineno) for entry in entries if "/stator/" not in entry.filename]
    seen.modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    torch.set_grad_enabled(True)
    seen.printed = output.getvalue()
    for one in warned:
        ours = str(one.message).startswith("stator")
        seen.said.append(str(one.message)) if ours else seen.warned.append((one.category, str(one.message)))
    seen.random = hash(bytes(torch.get_rng_state().numpy())), hash(random.getstate()), hash(str(np.random.get_state()))
    seen.log = list(log or ())
    if gradients and seen.error is None:
        seen.gradients = differentiate(seen.result, arguments)
    return seen


def differentiate(result: Any, arguments: Any) -> list[Any]:
    """Gradients of every tensor of the result, each weighted in its own way, by the leaves among the arguments."""
    loss: Any = 0.0
    for number, one in enumerate(pytree.tree_leaves(result), 1):
        if isinstance(one, torch.Tensor) and one.requires_grad:
            weights = torch.arange(one.numel(), dtype=torch.float64, device=one.device).add(number).cos()
            loss = loss + (one.to(torch.promote_types(one.dtype, torch.float64)) * weights.view(one.shape)).sum().real
    leaves = [one for one in pytree.tree_leaves(arguments) if isinstance(one, torch.Tensor) and one.is_leaf]
    wanted = [one for one in leaves if one.requires_grad]
    if not isinstance(loss, torch.Tensor) or not wanted:
        return []
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def check(
    function: Function | Program,
    *arguments: Any,
    make: Callable[[], Sequence[Any]] | None = None,
    backend: Any = "eager",
    fullgraph: bool = False,
    options: dict[str, Any] | None = None,
    calls: int = 2,
    tolerance: Tolerance | None = None,
    gradients: bool = False,
    lines: bool = False,
    warned: bool = False,
    log: list[Any] | None = None,
    graphs: int | None = None,
    breaks: int | None = None,
) -> Function:
    """Each of `calls` compiled calls does as eager; returns the compiled function.

    arguments: copied for every call; `make` makes them instead where they cannot be copied.
    lines, warned: also compare the lines that an error came through, and warnings.
    log: what the program writes its steps into.
    graphs, breaks: how many of these all calls make. Under fullgraph, equal arguments never compile twice.
    """
    if isinstance(function, Program):
        function, make = function.function, function.arguments
    if make is None:
        make = lambda: copy.deepcopy(arguments)  # noqa: E731
    tolerance = tolerance or (BY_BACKEND[backend] if isinstance(backend, str) else EXACT)
    stator.reset()
    compiled = stator.compile(function, backend=backend, fullgraph=fullgraph, options=options)
    counts = Counts()
    for call in range(calls):
        before = counts.compilations
        expected = observe(function, make(), gradients=gradients, log=log)
        found = observe(compiled, make(), gradients=gradients, log=log)
        assert_same_outcome(found, expected, tolerance, lines=lines, warned=warned)
        if fullgraph and call:
            assert counts.compilations == before, _told("equal arguments were compiled again")
    for name, wanted, made in (("graphs", graphs, counts.graphs), ("breaks", breaks, counts.breaks)):
        assert wanted in (None, made), _told(f"{made} {name} instead of {wanted}")
    return compiled


def written(value: Any, around: tuple[int, ...] = ()) -> Any:
    """The value as data that == compares by type and bit, and that later changes of the value leave as it is."""
    if id(value) in around:
        return "itself"
    deeper = lambda items: [written(item, (*around, id(value))) for item in items]  # noqa: E731
    if isinstance(value, torch.Tensor):
        bits = repr(value.detach().tolist()) if value.layout is torch.strided else str(value.detach())
        content: Any = (value.dtype, value.requires_grad, tuple(value.shape), bits)
    elif isinstance(value, np.ndarray):
        content = (value.dtype, value.shape, repr(value.tolist()))
    elif isinstance(value, dict):
        content = deeper(value.items())
    elif isinstance(value, list | tuple | deque):
        content = deeper(value)
    elif isinstance(value, set | frozenset):
        content = sorted(map(repr, value))
    else:
        content = _text(value if isinstance(value, BaseException) else repr(value))
    return type(value).__qualname__, content


def assert_same_outcome(
    found: Outcome, expected: Outcome, tolerance: Tolerance = EXACT, *, lines: bool = False, warned: bool = False
) -> None:
    """A compiled call did as the eager call. An error of only one of them is shown with its traceback."""
    if (found.error is None) != (expected.error is None):
        raise AssertionError(_told(f"{_short(found)} instead of {_short(expected)}")) from found.error or expected.error
    names = ["result", "error", "arguments", "gradients", "log", "printed", "random", "modes"]
    for name in [*names, *["lines"] * lines, *["warned"] * warned]:
        assert_same(getattr(found, name), getattr(expected, name), tolerance, name)
    assert found.memory() == expected.memory(), _told("other tensors are one, or share memory")


def assert_same(
    found: Any, expected: Any, tolerance: Tolerance = EXACT, path: str = "value", seen: set[Any] | None = None
) -> None:
    """Equal types, structure, attributes and text; tensors agree in layout and, within the tolerance, in value."""
    seen = set() if seen is None else seen
    if found is expected or (id(found), id(expected)) in seen:
        return
    seen.add((id(found), id(expected)))
    # formatted only where they differ: repr() may run code of the program
    told = lambda: _told(f"{path}: {found!r:.500} instead of {expected!r:.500}")  # noqa: E731
    deeper = lambda one, other, at: assert_same(one, other, tolerance, path + at, seen)  # noqa: E731
    assert _is_same_class(type(found), type(expected)), f"{told()}: {type(found)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        _assert_same_tensor(found, expected, tolerance, told)
        if expected.is_leaf:
            deeper(found.grad, expected.grad, ".grad")
    elif isinstance(expected, np.ndarray | np.generic):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), told()
        if expected.dtype == object:
            deeper(found.tolist(), expected.tolist(), ".tolist()")
        elif np.issubdtype(expected.dtype, np.inexact):
            np.testing.assert_allclose(found, expected, tolerance.relative, tolerance.absolute)
        else:
            assert np.array_equal(found, expected), told()
    elif isinstance(expected, float | complex) and expected == expected and tolerance != EXACT:
        assert found == expected or abs(found - expected) <= tolerance.at(abs(expected)), told()
    elif isinstance(expected, list | tuple | deque):
        assert len(found) == len(expected), told()
        for at, (one, other) in enumerate(zip(found, expected, strict=True)):
            deeper(one, other, f"[{at}]")
    elif isinstance(expected, dict):
        assert len(found) == len(expected), told()
        for one, other in zip(found, expected, strict=True):
            deeper(one, other, ".keys()")
            deeper(found[one], expected[other], f"[{other!r}]")
    elif isinstance(expected, BaseException):
        assert _text(found) == _text(expected), told()
        for name in ("args", "__cause__", "__context__", "__suppress_context__"):
            deeper(getattr(found, name), getattr(expected, name), f".{name}")
    elif isinstance(expected, type):
        assert _is_same_class(found, expected), told()
    elif isinstance(expected, set | frozenset):
        assert found == expected or sorted(map(repr, found)) == sorted(map(repr, expected)), told()
    elif isinstance(expected, str | bytes | int | float | complex | enum.Enum | range | slice):
        assert _text(repr(found)) == _text(repr(expected)), told()  # tells -0.0 from 0.0
    elif not hasattr(expected, "__dict__") and type(expected).__eq__ is not object.__eq__:
        assert found == expected, told()
    if hasattr(expected, "__dict__") and not (callable(expected) and not isinstance(expected, torch.nn.Module)):
        deeper(vars(found), vars(expected), ".__dict__")


def significant_strides(tensor: torch.Tensor) -> list[int]:
    """The strides that tell where elements are: those of dimensions of several elements, in a tensor with elements."""
    if not tensor.numel():
        return []
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _assert_same_tensor(found: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, told: Function) -> None:
    for name in ("dtype", "shape", "layout", "device", "requires_grad", "is_leaf"):
        assert getattr(found, name) == getattr(expected, name), f"{told()}: {name}"
    if tolerance != EXACT and expected.dtype in _NARROW:
        tolerance = NARROW
    if expected.layout is torch.strided and expected.numel():
        strides = [significant_strides(one) for one in (found, expected)]
        assert strides[0] == strides[1], f"{told()}: strides"
    if hasattr(expected, "__tensor_flatten__"):
        return  # has no memory of its own; its attributes hold the inner tensors
    limits = {"rtol": tolerance.relative, "atol": tolerance.absolute, "equal_nan": True}
    if expected.dtype.itemsize == 1 or not (expected.dtype.is_floating_point or expected.dtype.is_complex):
        limits.update(rtol=0, atol=0)
    # a subclass that the program defines is another class in each call, and assert_close compares related classes only
    plain = [one.detach().as_subclass(torch.Tensor) for one in (found, expected)]
    torch.testing.assert_close(*plain, **limits, msg=lambda text: f"{told()}\n{text}")


def _is_same_class(found: type, expected: type) -> bool:
    """A class that the program makes is another one in each call."""
    return found is expected or (found.__module__, found.__qualname__) == (expected.__module__, expected.__qualname__)


def _text(value: object) -> str:
    return _ADDRESS.sub("0x", str(value))


def _short(outcome: Outcome) -> str:
    return f"{outcome.error!r:.500}" if outcome.error is not None else f"{outcome.result!r:.500}"


def _told(text: str) -> str:
    """The text of a failure, with the command that runs its test again."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return f"{text}\nrerun: python -m pytest -n0 '{test}'" if test else text
