"""No decomposition grows with a size: OpInfo's samples, enlarged, have graphs with as many nodes.

Tensors have metadata only. A sample is enlarged eightfold and 64-fold, so that both graphs take the way of large sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from compiled import Case
from samples import IDENTIFIERS, OPERATORS, samples
from torch import fx
from torch.utils import _pytree as pytree

import stator
from stator.aot.trace.joint import trace_joint
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower, lower, print_lowered
from stator.inductor.passes import run_passes
from stator.prims.record import TensorMeta, record

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
REFUSALS = (stator.StatorError, RuntimeError, ValueError, TypeError, IndexError, AssertionError, OverflowError)
# A binary search compares once for each bit of the size.
LOGARITHMIC = frozenset(("bucketize", "searchsorted"))
SAMPLES = 8  # of each dtype
MOST_MORE = 4  # nodes, for a size that happens to be round
LEVELS: dict[str, Callable[[Any], bool]] = {
    "inductor": can_lower,
    "prims": lambda target: record(target).level == "prims",
}


@dataclass(frozen=True)
class Scaling:
    """Multiplies sizes: these lengths of dimensions, and these integers among the arguments."""

    lengths: frozenset[int]
    integers: frozenset[int] = frozenset()

    def leaves(self, case: Case, factor: int, gradient: bool) -> list[Any]:
        mode = FakeMode()

        def leaf(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                differentiable = value.is_floating_point() or value.is_complex()
                return mode.make(self.meta(value, factor), requires_grad=gradient and differentiable)
            return value * factor if type(value) is int and value in self.integers else value

        return [leaf(value) for value in case.flat[0]]

    def meta(self, tensor: torch.Tensor, factor: int) -> TensorMeta:
        """The enlarged tensor: dense, with the sample's order of dimensions in memory, and expanded where it is."""
        shape = tuple(size * factor if size in self.lengths else size for size in tensor.shape)
        strides, stride = [0] * tensor.dim(), 1
        for dim in sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim)):
            if tensor.stride(dim) or tensor.shape[dim] <= 1:
                strides[dim], stride = stride, stride * shape[dim]
        return TensorMeta(shape, tuple(strides), tensor.dtype, tensor.device, 0)


def scalings(case: Case) -> tuple[list[Scaling], list[Scaling]]:
    """Of tensors alone: of all lengths together, and of each. And of integers, too, where eager wants them to fit."""
    lengths = frozenset(size for tensor in case.tensors for size in tensor.shape if size > 1)
    integers = frozenset(leaf for leaf in case.flat[0] if type(leaf) is int and leaf > 1)
    alone = [frozenset((one,)) for one in lengths] if len(lengths) > 1 else []
    each = [one for one in (lengths, *alone) if one]
    fitting = [Scaling(one, one & integers) for one in each if one & integers]
    if integers and (lengths or not case.tensors):
        fitting.append(Scaling(lengths, integers))
    return [Scaling(one) for one in each], fitting


def traced(case: Case, scaling: Scaling, factor: int, level: str, gradient: bool) -> fx.GraphModule:
    leaves = scaling.leaves(case, factor, gradient)

    def function(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        called = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(called, case.flat[1])
        return case.op(*args, **kwargs)

    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return (trace_joint if gradient else trace)(function, tensors, keep=LEVELS[level]).graph


def outputs(graph: fx.GraphModule) -> int:
    return max(len(graph.graph.output_node().args[0]), 1)


def pairs(case: Case, level: str, gradient: bool = False) -> Iterator[tuple[Scaling, fx.GraphModule, fx.GraphModule]]:
    """The graphs of a sample eight times and 64 times as large, for each way to enlarge it that eager accepts."""
    of_tensors, fitting = scalings(case)
    accepted = False
    for scaling in (*of_tensors, *fitting):
        if accepted and scaling.integers:  # an integer may be an order, such as that of a difference, and no size
            return
        try:
            small = traced(case, scaling, 8, level, gradient)
            large = traced(case, scaling, 64, level, gradient)
        except REFUSALS:
            continue
        accepted = True
        yield scaling, small, large


def growth(name: str, small: fx.GraphModule, large: fx.GraphModule) -> str | None:
    """How a graph grows; None if it does not. One with more results may have more nodes in proportion."""
    few, many = len(small.graph.nodes), len(large.graph.nodes)
    results = outputs(large) / outputs(small)
    bound = few * results + MOST_MORE if name not in LOGARITHMIC else few * 1.5
    return f"{few} nodes, then {many}" if many > bound else None


def enlarged(level: str, gradient: bool, each: bool) -> tuple[set[str], list[str]]:
    """The operators of which samples were enlarged (one each, or all), and those whose graphs grow."""
    torch.manual_seed(0)
    checked, found = set(), []
    for name, op in NAMED:
        for sample in samples(op, SAMPLES, (torch.float32, torch.int64)):
            case = Case(name, op, sample)
            for scaling, small, large in pairs(case, level, gradient):
                checked.add(name)
                if name in GROWS_IN_OLDER and gradient:
                    continue
                if problem := growth(name, small, large):
                    found.append(f"{case.describe()[:200]}, {scaling}: {problem}")
            if name in checked and not each:
                break
    return checked, found


OLDER = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
GROWS_IN_OLDER = {"cumprod", "linalg.vander", "masked.cumprod"} if OLDER else set()
"""torch before 2.13 writes the gradient of cumprod as operators for each element."""
FEWER = 10 if OLDER else 0  # operators of OpInfo


@pytest.mark.parametrize(("level", "gradient", "least"), [("inductor", False, 650), ("inductor", True, 620)])
def test_the_number_of_nodes_does_not_grow_with_sizes(level: str, gradient: bool, least: int) -> None:
    checked, found = enlarged(level, gradient, each=False)
    assert not found, "\n".join(found)
    assert len(checked) >= least - FEWER


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("level", "gradient", "least"), [("inductor", False, 650), ("inductor", True, 630), ("prims", False, 650)]
)
def test_no_sample_grows_with_sizes(level: str, gradient: bool, least: int) -> None:
    checked, found = enlarged(level, gradient, each=True)
    assert not found, "\n".join(found)
    assert len(checked) >= least - FEWER


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_code_of_loops_does_not_grow_with_sizes() -> None:
    """It is not twice as long: an intermediate result becomes a buffer at some size."""
    lines: Counter[str] = Counter()
    found = []
    for name, op in NAMED:
        for sample in samples(op, 5, (torch.float32,)):
            case = Case(name, op, sample)
            for scaling, *graphs in pairs(case, "inductor"):
                try:
                    few, many = (print_lowered(lower(run_passes(graph, False), False)).count("\n") for graph in graphs)
                except stator.CompileError:  # a size among the arguments that the enlarged tensors do not have
                    continue
                lines[name] += few
                if many > 2 * few * outputs(graphs[1]) / outputs(graphs[0]):
                    found.append(f"{case.describe()[:200]}, {scaling}: {few} lines, then {many}")
    assert not found, "\n".join(found)
    assert len(lines) >= 600
