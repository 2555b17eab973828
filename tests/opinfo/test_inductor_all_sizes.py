"""OpInfo's samples compiled with a symbol for each distinct size.

One set of kernels equals eager at the sample's sizes, and at other sizes for which the facts hold.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from compiled import NOT_REPEATABLE
from samples import IDENTIFIERS, OPERATORS, samples
from symbolic import Symbols
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from stator import pipeline
from stator.base.config import Options
from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.expr import Symbol
from stator.shapes.sym_node import to_sym_int

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

# Random offsets do not ascend: eager then adds up what it finds in memory.
ORDERED = ("nn.functional.embedding_bag",)
NAMED = [
    (name, op)
    for name, op in zip(IDENTIFIERS, OPERATORS, strict=True)
    if name not in ORDERED and not any(word in name for word in NOT_REPEATABLE)
]
PART = 40
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]
QUICK = frozenset((
    "addmm", "argmax", "cumsum", "diagonal", "gather", "index_add", "nn.functional.avg_pool2d", "nn.functional.pad",
    "nn.functional.conv2d", "softmax", "std_mean", "tril", "unfold", "where",
))  # fmt: skip
LARGEST_ERROR = {"rtol": 2e-4, "atol": 2e-4}
OTHERS = 5  # sets of other sizes


def calls(op: Any, count: int) -> Iterator[tuple[Callable[..., Any], list[torch.Tensor]]]:
    for sample in samples(op, count, (torch.float32,)):
        leaves, spec = tree_flatten(sample)
        places = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[at].detach().contiguous() for at in places if leaves[at].layout is torch.strided]
        if not tensors or len(tensors) < len(places):
            continue

        def call(*given: Any, leaves: Any = leaves, spec: Any = spec, places: Any = places) -> Any:
            values = list(leaves)
            for at, tensor in zip(places, given, strict=True):
                values[at] = tensor
            tensor, args, kwargs = tree_unflatten(values, spec)
            return op(tensor, *args, **kwargs)

        yield call, tensors


def other_sizes(environment: Environment, generator: random.Random) -> list[dict[Symbol, int]]:
    free = [symbol for symbol in environment.hints if symbol not in environment.replacements]
    found: list[dict[Symbol, int]] = []
    for _ in range(8 * OTHERS if free else 0):
        values = {s: generator.choice((1, 16, 33, generator.randint(2, 2 * environment.hints[s] + 3))) for s in free}
        for symbol, expression in environment.replacements.items():
            values[symbol] = expression.evaluate(values)
        if environment.holds(values):
            found.append(values)
    return found[:OTHERS]


def resized(tensor: torch.Tensor, shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """A tensor of another shape with values in the range of the sample's, which may be indices. Ascending values, such
    as boundaries to search in, ascend."""
    low, high = (tensor.min(), tensor.max()) if tensor.numel() else (tensor.new_zeros(()), tensor.new_ones(()))
    if tensor.dtype.is_floating_point:
        made = torch.rand(shape, generator=generator, dtype=tensor.dtype) * (high - low) + low
    else:
        made = torch.randint(int(low), int(high) + 1, tuple(shape), generator=generator).to(tensor.dtype)
    ascends = tensor.dim() > 0 and tensor.shape[-1] > 1 and bool((tensor.diff() >= 0).all())
    return made.sort().values if ascends else made


def in_one_thread(call: Callable[..., Any], *given: torch.Tensor) -> Any:
    """Drawn indices may name a place twice (max_unpool2d), to which several threads of eager write in any order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return call(*given)
    finally:
        torch.set_num_threads(threads)


def problems(part: Sequence[tuple[str, Any]], count: int) -> Iterator[str]:
    for name, op in part:
        for call, tensors in calls(op, count):
            eager = partial(in_one_thread, call) if "max_unpool" in name else call
            yield from (f"{name} {text}" for text in problems_of(call, tensors, eager))


def problems_of(call: Callable[..., Any], tensors: list[torch.Tensor], eager: Callable[..., Any]) -> Iterator[str]:
    symbols = Symbols(shared=True)
    environment, mode = symbols.environment, FakeMode()
    described = [symbols.layout(tensor) for tensor in tensors]
    fakes = []
    for (shape, strides, offset), tensor in zip(described, tensors, strict=True):
        layout = tree_map(lambda value: to_sym_int(environment, value), (tuple(shape), tuple(strides), offset))
        fakes.append(mode.make(TensorMeta(layout[0], layout[1], tensor.dtype, tensor.device, layout[2])))
    try:
        call(*[tensor.clone() for tensor in tensors])
        traced = trace(call, fakes, keep=can_lower)
    except Exception:  # eager refuses the sample, or tracing does: other tests judge that
        return
    if not environment.hints or not traced.is_plain:
        return
    try:
        compiled = pipeline.compile_graph(traced.graph, tensors, options=Options(verify=True))
    except Unsupported as error:
        yield f"is refused: {error}"
        return
    generator = torch.Generator().manual_seed(0)
    for values in [dict(environment.hints), *other_sizes(environment, random.Random(0))]:
        given = tensors
        if values != environment.hints:
            shapes = [[one.evaluate(values) if isinstance(one, Symbol) else one for one in d[0]] for d in described]
            given = [resized(one, shape, generator) for one, shape in zip(tensors, shapes, strict=True)]
        try:
            expected = [leaf for leaf in tree_flatten(eager(*given))[0] if isinstance(leaf, torch.Tensor)]
        except Exception:  # the sample's numbers do not fit these sizes
            continue
        for one, other in zip(compiled(*given), expected, strict=True):
            try:
                strides = zip(one.stride(), other.stride(), one.shape, strict=True)
                alike = all(mine == theirs or size == 1 for mine, theirs, size in strides)
                assert alike or not one.numel(), f"{one.stride()}, not {other.stride()}"
                torch.testing.assert_close(one, other, equal_nan=True, **LARGEST_ERROR)
            except AssertionError as error:
                yield f"at {values}: {error}"


def test_operators_at_all_sizes() -> None:
    torch.manual_seed(0)
    found = list(problems([(name, op) for name, op in NAMED if name in QUICK], 1))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_every_operator_at_all_sizes(part: list) -> None:
    torch.manual_seed(0)
    found = list(problems(part, 3))
    assert not found, "\n".join(found)
