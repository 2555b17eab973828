"""One run of a program on fake tensors with symbolic sizes: its results, its error, and what it relied on.

The program's real Python runs, above autograd, so that torch's composite operators decompose as in eager. Never here: a
choice between several runs (`paths.py`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import _pytree as pytree

from stator.base.errors import StatorError, Unsupported, UsageError, UserPlace
from stator.base.signals import raised_by_signal_handler
from stator.graph.fake.fake_mode import SCALAR_READS, FakeMode, FakeStorage, FakeTensor
from stator.graph.fake.unknown_sizes import UnknownSizes
from stator.graph.ir.schema import op_info
from stator.graph.operators.data_dependent_functions import stand_in_for
from stator.prims.devices import CPU
from stator.shapes.conditions import Condition, compare
from stator.shapes.environment import Environment, SizeFact
from stator.shapes.expr import Symbol
from stator.shapes.intervals import Bound
from stator.shapes.sym_node import to_expression

from .function_caches import caches_of_functions, results_without_data_dropped
from .places import current_place, is_raised_by_program, module_of, places_of
from .specs import Dim, Inputs, TensorSpec


@dataclass(frozen=True, slots=True)
class CallOfTorch:
    """A call of a torch function: its name, and the shapes of its tensors in expressions."""

    name: str
    shapes: tuple[tuple[Any, ...], ...]
    arguments: tuple[Any, ...] = ()  # arguments that are no tensors

    @staticmethod
    def of(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallOfTorch:
        leaves = pytree.tree_leaves((args, kwargs))
        shapes = tuple(
            tuple(to_expression(size) for size in leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)
        )
        name = getattr(function, "__name__", None) or str(resolve_name(function))
        if name == "__get__":
            name = str(resolve_name(function)).split(".")[-2]
        others = tuple(to_expression(leaf) for leaf in leaves if isinstance(leaf, (int, float, torch.SymInt)))
        return CallOfTorch(name, shapes, others)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of a run. places: the program's lines, outermost first. call: the torch function that raised it.

    known: False if the run could not be followed, which says nothing about the program. module: the innermost one.
    """

    error: BaseException
    places: tuple[UserPlace, ...]
    call: CallOfTorch | None
    known: bool
    module: torch.nn.Module | None = None

    @property
    def text(self) -> str:
        reason = self.error.reason if isinstance(self.error, Unsupported) else str(self.error)
        return f"{type(self.error).__name__}: {reason}" if self.known else reason


@dataclass(slots=True)
class Run:
    """One run: the environment, its facts about named sizes in order, assumptions about data, and the outcome.

    values: the example values, of truths of data, too. ranges: those of the named sizes and truths before the run.
    fixed: facts that make a number of a size. truths: where the program reads each truth of data.
    outputs: the results, with `TensorShape` in place of tensors. observed: what the observer returned.
    """

    environment: Environment
    values: dict[str, int]
    ranges: dict[Symbol, tuple[Bound, Bound]] = field(default_factory=dict)
    fixed: set[Condition] = field(default_factory=set)
    truths: dict[Symbol, UserPlace | None] = field(default_factory=dict)
    outputs: Any = None
    failure: Failure | None = None
    observed: Any = None
    facts: list[SizeFact] = field(default_factory=list)
    assumptions: list[SizeFact] = field(default_factory=list)


# Called around a run with its mode; yields what notes the operators.
Observer = Callable[["SymbolicMode", "Program"], Any]


class _SymbolicEnvironment(Environment):
    """Remembers which facts make a number of a size. The truth of a comparison that the program's Python makes is
    decided at once: torch's parser refuses a SymBool where an operator takes a bool, before any mode sees the call."""

    def __init__(self, mode: SymbolicMode) -> None:
        super().__init__(locate=current_place, assumes=True)
        self.fixed: set[Condition] = set()
        self._mode = mode

    def truth(self, condition: Condition) -> bool | None:
        known = self.evaluate_static(condition)
        if known is not None or isinstance(condition, bool) or self._mode.calling is not None:
            return known
        return self.decide(condition) if condition.symbols <= self.hints.keys() else None

    def specialize(self, value: Any) -> Any:
        known = len(self.facts)
        number = super().specialize(value)
        self.fixed.update(fact.condition for fact in self.facts[known:])
        return number

    def decide_or(self, condition: Condition, otherwise: bool) -> bool:
        """Record the answer: a broadcast of a size of one is another way through the program."""
        if isinstance(condition, bool) or not condition.symbols <= self.hints.keys():
            return super().decide_or(condition, otherwise)
        return self.decide(condition)


class SymbolicMode(FakeMode):
    """A mode whose sizes are symbols of one environment. `observe` is called after each operator on fake tensors with
    (operator, args, kwargs, result). `inside`: functions of operators that allocate what a kernel does, by kernel.
    `calling`: the torch function that runs.

    A truth that depends on data is a symbol between 0 and 1, with its value in `values`, or else 0. Recurrent layers
    are one operator at any length, so that the program has no further ways through it.
    """

    eager_layers = False

    def __init__(self, values: Mapping[str, int]) -> None:
        super().__init__()
        self.unknown = UnknownSizes()
        self.environment = self.unknown.environment = _SymbolicEnvironment(self)
        self.values = values
        self.truths: dict[Symbol, UserPlace | None] = {}
        self._from_before: set[int] = set()
        self.inside: Mapping[OpOverload, Callable[..., Any]] = {}
        self.calling: Any = None
        self.observe: Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], None] | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        inside = self.inside.get(func)
        if inside is not None:
            with self:
                result = inside(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self.observe is not None and result is not NotImplemented:
            self.observe(func, args, kwargs or {}, result)
        return result

    def tensors_met(self) -> list[torch.Tensor]:
        """The real tensors that operators were given: parameters, buffers and constants of the program."""
        return [tensor for tensor, _ in self._constants.values()]

    def is_from_before(self, storage: FakeStorage) -> bool:
        """Whether this is the memory of a real tensor that operators were given."""
        if len(self._constants) != len(self._from_before):
            self._from_before = {id(fake.fake_storage) for _, fake in self._constants.values()}
        return id(storage) in self._from_before

    def of_unknown_size(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[FakeTensor]
    ) -> Any:
        if func in SCALAR_READS and args[0].dtype is torch.bool:
            return self._truth()
        result = self.unknown.results(func, args, kwargs)
        return result if result is NotImplemented else self._wrap(op_info(func), result, tensors)

    def _truth(self) -> bool:
        name = f"data_{len(self.truths) + 1}"
        symbol = self.environment.symbol(name, self.values.get(name, 0), 0, 1)
        self.truths[symbol] = current_place()
        return self.environment.decide(compare("==", symbol, 1))

    def unknown_size(self) -> Any:
        return self.unknown.size(float("inf"))


class _TorchCalls(TorchFunctionMode):
    """Runs replacements of functions that read data, and remembers the outermost call that failed."""

    def __init__(self, mode: SymbolicMode) -> None:
        super().__init__()
        self.mode = mode
        self.failed: CallOfTorch | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.mode.calling = func
        try:
            return (stand_in_for(func) or func)(*args, **(kwargs or {}))
        except Exception:
            self.failed = CallOfTorch.of(func, args, kwargs or {})
            raise
        finally:
            self.mode.calling = None


class Program:
    """A callable with specs of its inputs. Each run leaves the attributes of its modules as they were, and no tensor
    without data in a functools cache.

    Raises UsageError for a target that cannot be called.
    """

    def __init__(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dims: Mapping[Any, Any] | None
    ) -> None:
        if not callable(target):
            raise UsageError(f"expected a function or module, not {type(target).__name__}: {target!r}")
        self.target = target
        self.roots = _modules_behind(target)
        modules = {module: name for root in self.roots for name, module in root.named_modules()}
        self.modules: dict[torch.nn.Module, str] = modules
        first = next((tensor for root in self.roots for tensor in root.parameters()), None)
        self.inputs = Inputs(target, args, kwargs, dims, CPU if first is None else first.device)
        self._caches = caches_of_functions()

    def run(
        self,
        values: Mapping[str, int],
        *,
        observer: Observer | None = None,
        gradients: bool = False,
        fixed: bool = False,
    ) -> Run:
        """Run once with these example values; fixed: with numbers in place of symbols. gradients: under autograd."""
        mode = SymbolicMode(values)
        calls = _TorchCalls(mode)
        run = Run(mode.environment, dict(values))
        with ExitStack() as stack:
            stack.enter_context(_attributes_kept(self.modules))
            stack.enter_context(results_without_data_dropped(self._caches))
            stack.enter_context(torch._C._InferenceMode(False))
            stack.enter_context(torch.set_grad_enabled(gradients))
            try:
                with calls, mode:
                    args, kwargs = self.inputs.make(mode, mode.environment, values, fixed)
                    run.ranges = dict(mode.environment.ranges)
                    if observer is None:
                        result = self.target(*args, **kwargs)
                    else:
                        run.observed, result = observer(mode, self)(args, kwargs)
                    run.outputs = pytree.tree_map(_described, result)
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                run.failure = _failure(error, calls.failed)
            finally:
                mode.forget()
        run.fixed, run.truths = mode.environment.fixed, mode.truths
        run.ranges.update(dict.fromkeys(mode.truths, (0, 1)))
        for fact in mode.environment.facts:
            (run.facts if fact.condition.symbols <= run.ranges.keys() else run.assumptions).append(fact)
        return run


@dataclass(frozen=True, slots=True)
class TensorShape:
    """The sizes (expressions or ints) and the dtype of a result."""

    shape: tuple[Any, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{shape_text(self.shape)} {str(self.dtype).removeprefix('torch.')}"


def shape_text(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _described(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        environment_free = tuple(to_expression(size) for size in value.shape)
        return TensorShape(environment_free, value.dtype)
    return to_expression(value)


def _failure(error: Exception, call: CallOfTorch | None) -> Failure:
    places = places_of(error.__traceback__)
    if _raised_by(error, torch.SymInt.__hash__):
        what = "a size is a key of a dictionary, a set or a functools cache, which needs a number"
        error = Unsupported("dynamic-shape", f"{what}: give one in the spec in place of the name")
    if isinstance(error, StatorError):
        place = getattr(error, "place", None)
        return Failure(error, tuple(places or ([place] if place else [])), call, known=False)
    if is_raised_by_program(error.__traceback__) or isinstance(error, AssertionError):  # of torch._assert
        call = None
    module = module_of(error.__traceback__)
    return Failure(error.with_traceback(None), tuple(places), call, known=True, module=module)


def _raised_by(error: Exception, function: Any) -> bool:
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_code is function.__code__


def _modules_behind(target: Any) -> list[torch.nn.Module]:
    """The modules that a callable is, is bound to, or closes over."""
    if isinstance(target, torch.nn.Module):
        return [target]
    if isinstance(target, functools.partial):
        found = [one for one in (*target.args, *target.keywords.values()) if isinstance(one, torch.nn.Module)]
        return _modules_behind(target.func) + found
    if inspect.ismethod(target):
        owner = target.__self__
        return ([owner] if isinstance(owner, torch.nn.Module) else []) + _modules_behind(target.__func__)
    if not inspect.isfunction(target):
        return []
    around = inspect.getclosurevars(target)
    return [one for one in (*around.nonlocals.values(), *around.globals.values()) if isinstance(one, torch.nn.Module)]


@contextmanager
def _attributes_kept(modules: Mapping[torch.nn.Module, str]) -> Iterator[None]:
    """Put back attributes, parameters and buffers that a run sets, because they would hold tensors without data."""
    kept = [(module, dict(module.__dict__)) for module in modules]
    inner = [
        (table, dict(table))
        for module in modules
        for name in ("_parameters", "_buffers", "_modules")
        for table in (module.__dict__[name],)
    ]
    try:
        yield
    finally:
        for table, before in (*((module.__dict__, old) for module, old in kept), *inner):
            if any(table.get(name, table) is not value for name, value in before.items()) or len(table) != len(before):
                table.clear()
                table.update(before)


__all__ = ["CallOfTorch", "Dim", "Failure", "Program", "Run", "SymbolicMode", "TensorShape", "TensorSpec", "shape_text"]
