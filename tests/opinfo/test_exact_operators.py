"""`exact_rounding` on OpInfo's samples: results and gradients have eager's bits, where eager has the same bits twice.

Through what it compiles graphs to; of operators that cannot be in one graph, through the backend they are handed to.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import bits
import compiled
import gradients
import handed_over
import pytest
import torch
from samples import IDENTIFIERS, LAYOUTS, OPERATORS
from test_gradients import RUNS_EAGERLY
from torch.utils import _pytree as pytree

from stator import aot, pipeline
from stator.aot.runtime.replay import with_effects
from stator.base.errors import Unsupported
from stator.graph.tracing.tracer import trace

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators, of what runs in ATen

PART = 60
NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]
SAMPLED = 4  # the quick tests take every fourth operator, the slow ones all
by_part = pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
# For tensor subclasses, such as fake tensors, autograd has other formulas; before torch 2.12 also for cumprod, of which
# the last three are made. That of index_fill sums over distinct indices, which a graph does not know: it adds zeros.
COMPUTED_OTHERWISE = {"prod", "masked.prod", "masked_fill", "index_fill", "ormqr"}
if torch.__version__ < "2.12":
    COMPUTED_OTHERWISE |= {"cumprod", "masked.cumprod", "linalg.vander"}


def check_gradients(part: list, count: int | None, layouts: tuple[str | None, ...], dtypes: Any) -> None:
    torch.manual_seed(0)
    part = [(name, op) for name, op in part if name not in COMPUTED_OTHERWISE]
    found = (case for case in gradients.cases(part, count, layouts, dtypes) if not _is_left_out(case))
    told = bits.problems(
        found,
        lambda case: gradients.exactly([case])[0],
        lambda case: gradients.eager([case])[0],
        lambda case, error: gradients.runs_eagerly(error) and case.name in RUNS_EAGERLY,
    )
    assert not (wrong := list(told)), "\n".join(wrong)


def check_results(part: list, count: int, layouts: tuple[str | None, ...]) -> None:
    torch.manual_seed(0)
    found = chain.from_iterable(compiled.cases([one], count, _defined(one[0], layouts)) for one in part)
    told = bits.problems(
        (case for case in found if not _is_left_out(case)),
        _traced,
        lambda case: compiled.eager([case])[0],
        lambda case, error: case.name in compiled.UNSUPPORTED and isinstance(error, (Unsupported, RuntimeError)),
    )
    assert not (wrong := list(told)), "\n".join(wrong)


def _defined(name: str, layouts: tuple[str | None, ...]) -> tuple[str | None, ...]:
    """Those in which an operator that reads memory by itself reads none that nobody wrote."""
    if not name.startswith(gradients.READS_MEMORY):
        return layouts
    return tuple(layout for layout in layouts if layout not in ("gapped", "overlapping"))


def _is_left_out(case: compiled.Case | gradients.GradientCase) -> bool:
    """Least squares by `gelsy` (see below), and embeddings whose weights are normalised and lie in memory with gaps: a
    graph normalises a dense copy and writes it back, and the norm of a dense row is added up in another order."""
    options = case.sample[2]
    if case.name.startswith("linalg.lstsq"):
        return options.get("driver") in ("gelsy", None)
    if not case.name.startswith("nn.functional.embedding") or options.get("max_norm") is None:
        return False
    return any(tensor.is_floating_point() and 1 not in tensor.stride() for tensor in case.tensors)


def test_least_squares_by_gelsy_have_other_bits_from_call_to_call() -> None:
    """Of eager: it passes pivots that nobody has written. That is why they are left out above."""
    torch.manual_seed(0)
    a, b, held, found = torch.randn(3, 4, 3), torch.randn(3, 4, 3), [], []
    for size in range(8, 408, 4):
        held.append(torch.empty(size))
        found.append(torch.linalg.lstsq(a.clone(), b.clone(), driver="gelsy").solution)
    assert not all(torch.equal(one, found[0]) for one in found)


def _traced(case: compiled.Case) -> Any:
    given = compiled.inputs([case])
    traced = trace(compiled.function_of([case]), given, keep=aot.keep_all)
    run = with_effects(traced, pipeline.compile_exactly(traced.graph, given, options=gradients.EXACT))
    with torch.no_grad():
        return run(compiled.inputs([case]))[0]


@by_part
def test_gradients_have_eagers_bits(part: list) -> None:
    check_gradients(part[::SAMPLED], 1, (None,), (torch.float32,))


@by_part
def test_results_have_eagers_bits(part: list) -> None:
    check_results(part[1::SAMPLED], 1, (None,))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_gradients_of_all_samples_have_eagers_bits(part: list) -> None:
    check_gradients(part, None, (None,), gradients.DTYPES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_gradients_have_eagers_bits_in_every_layout(part: list) -> None:
    check_gradients(part, 6, tuple(LAYOUTS), gradients.DTYPES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@by_part
def test_results_have_eagers_bits_in_every_layout(part: list) -> None:
    check_results(part, 12, (None, *LAYOUTS))


@pytest.mark.parametrize("name", sorted(RUNS_EAGERLY))
def test_gradients_around_what_runs_in_aten_have_eagers_bits(name: str) -> None:
    """In a graph that is handed over, with something before it that is compiled."""
    torch.manual_seed(0)

    def run(case: gradients.GradientCase) -> Any:
        results = lambda *given: [pytree.tree_leaves(handed_over.run(case, handed_over.EXACT, given))]  # noqa: E731
        return _contiguous_gradients(gradients._differentiated([case], results)[0])

    found = gradients.cases([one for one in NAMED if one[0] == name], 4, dtypes=(torch.float32,))
    steady = [case for case in found if not _is_left_out(case)]
    told = bits.problems(
        steady, run, lambda case: _contiguous_gradients(gradients.eager([case])[0]), lambda case, error: False
    )
    assert not (wrong := list(told)), "\n".join(wrong)


def _contiguous_gradients(results: gradients.Results) -> Any:
    """A compiled part takes tangents laid out as its results are, so that the layout of what comes from behind ends."""
    return results[0], [None if gradient is None else gradient.contiguous() for gradient in results[1]]


@pytest.mark.parametrize("name", sorted(compiled.UNSUPPORTED))
def test_results_of_what_is_handed_over_have_eagers_bits(name: str) -> None:
    torch.manual_seed(0)

    def run(case: compiled.Case) -> Any:
        with torch.no_grad():
            return _dense(handed_over.run(case, handed_over.EXACT, compiled.inputs([case])))

    found = compiled.cases([one for one in NAMED if one[0] == name], 2, (None,))
    told = bits.problems(found, run, lambda case: _dense(compiled.eager([case])[0]), lambda case, error: False)
    assert not (wrong := list(told)), "\n".join(wrong)


def _dense(result: Any) -> list[Any]:
    leaves = pytree.tree_leaves(result)
    return [leaf.to_dense() if isinstance(leaf, torch.Tensor) and leaf.is_sparse else leaf for leaf in leaves]
