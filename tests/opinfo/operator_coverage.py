"""How much of each operator of torch's database the compiler covers: samples traced and lowered, nothing built or run.

`python tests/opinfo/operator_coverage.py` prints the report; `page` is docs/operator-coverage.md, which `make docs`
writes.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from compiled import Case, eager, inputs
from handed_over import graph_of
from samples import IDENTIFIERS, OPERATORS, samples

from stator.aot import functionalize_random
from stator.base import counters
from stator.base.errors import StatorError
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Extern
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
KINDS = ("own", "partly", "whole", "refused")
FALLBACK = "inductor_fallback:"
# Calls that look at values and raise or warn, as eager does: no number of a result comes from them.
CHECKS = frozenset({"aten._assert_async.msg", "stator.check.default"})


@dataclass(slots=True)
class Coverage:
    """What became of one operator's samples.

    counts: how many were compiled as kernels and chosen library products alone ("own"), as those and fallback calls
        ("partly"), as nothing but fallback calls ("whole"), or not at all, so that they run eagerly ("refused").
    fallbacks: which operators were called in the library for want of a lowering, and how often.
    reasons: why samples were refused.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        """ "own" when no sample needs a fallback; "whole" when most samples are nothing else; else "partly"."""
        total = sum(self.counts.values())
        if self.counts["own"] == total:
            return "own"
        return "whole" if 2 * (self.counts["whole"] + self.counts["refused"]) > total else "partly"

    @property
    def only_checked(self) -> bool:
        """Whether the library is called for checks of values alone, and for all samples kernels compute the result."""
        return bool(self.fallbacks) and not (self.counts["refused"] or self.fallbacks.keys() - CHECKS)


def coverage(name: str, op: Any, count: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Coverage:
    """Classify the first `count` samples of each dtype; those eager itself refuses are left out."""
    found = Coverage(name)
    for sample in samples(op, count, dtypes):
        case = Case(name, op, sample)
        if all(tensor.layout is torch.strided for tensor in case.tensors):
            _classify(found, case)
    return found


def _classify(found: Coverage, case: Case) -> None:
    before = Counter(counters.counts)
    try:
        given = inputs([case])
        traced = trace(graph_of(case), given, keep=can_lower)
        lowered = lower(run_passes(functionalize_random(traced.graph)))
    except Exception as error:
        if isinstance(error, StatorError) or _eager_accepts(case):
            found.counts["refused"] += 1
            found.reasons[f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"] += 1
        return
    missing = {
        name.removeprefix(FALLBACK): number - before[name]
        for name, number in counters.counts.items()
        if name.startswith(FALLBACK) and number > before[name]
    }
    found.fallbacks.update(missing)
    calls = sum(isinstance(node, Extern) for node in lowered.nodes)
    own_work = len(lowered.nodes) - calls
    if not missing:
        found.counts["own"] += 1
    else:
        found.counts["partly" if own_work or calls > sum(missing.values()) else "whole"] += 1


def _eager_accepts(case: Case) -> bool:
    try:
        with torch.no_grad():
            eager([case])
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
    return True


def report(found: Iterable[Coverage]) -> Iterator[str]:
    """Lines for a person: the operators that are not all our own, worst first, then the counts."""
    ordered = sorted(found, key=lambda one: (-KINDS.index(one.kind), one.name))
    for one in ordered:
        if one.kind != "own":
            numbers = " ".join(f"{kind} {one.counts[kind]}" for kind in KINDS if one.counts[kind])
            why = [*(f"{name} x{times}" for name, times in one.fallbacks.most_common(3)), *one.reasons]
            yield f"{one.kind:7} {one.name:45} {numbers:40} {'; '.join(why)[:150]}"
    total = Counter(one.kind for one in ordered)
    for kind in ("own", "partly", "whole"):
        yield f"{kind}: {total[kind]} of {len(ordered)} ({100 * total[kind] / max(len(ordered), 1):.1f}%)"


def covered(count: int, only: str = "") -> list[Coverage]:
    """The coverage of every operator whose name contains `only`, by its first `count` samples of each dtype."""
    torch.manual_seed(0)
    named = zip(IDENTIFIERS, OPERATORS, strict=True)
    return [coverage(name, op, count) for name, op in named if only in name]


def page() -> str:
    """The page of the documentation: how many operators are covered, and the list of whole fallbacks."""
    found = covered(sys.maxsize)
    total = Counter(one.kind for one in found)
    version = torch.__version__.partition("+")[0]
    whole = [one for one in found if one.kind == "whole"]
    refused = [one for one in whole if one.counts["refused"] > one.counts["whole"]]
    partly = [one for one in found if one.kind == "partly"]
    checked = sum(one.only_checked for one in partly)
    lines = [
        "# Which operators compile to kernels",
        "",
        f"Generated by `make docs` with torch {version}, CPU: torch's operator database (`op_db`, {len(found)} "
        "entries), every sample in each of float32, float64, bfloat16, int64 and bool that the operator has, traced "
        "and lowered for backend `inductor`.",
        "",
        f"- {total['own']} need no fallback: kernels, and library calls by choice (matrix products, convolutions).",
        f"- {total['partly']} are kernels and fallback library calls together, or need the library for some samples. "
        f"For {checked} of them these calls are only checks of values, which raise or warn as eager does "
        "(`_assert_async.msg`, `stator.check`): the results are computed as those of the operators without fallback.",
        f"- {total['whole']} ({100 * total['whole'] / len(found):.1f}%) are, for most of their samples, nothing but a "
        f"fallback: {len(whole) - len(refused)} as library calls in the compiled graph, {len(refused)} because the "
        "shape of their result, or a Python value, depends on data: capture ends before them and ATen runs them.",
        "",
        "## Whole fallbacks",
        "",
        "| operator | samples | calls |",
        "| --- | --- | --- |",
    ]
    for one in whole:
        samples_ = ", ".join(f"{one.counts[kind]} {kind}" for kind in KINDS if one.counts[kind])
        calls = ", ".join(f"`{name.removeprefix('aten.').removesuffix('.default')}`" for name in sorted(one.fallbacks))
        lines.append(f"| `{one.name}` | {samples_} | {calls or 'runs eagerly'} |")
    lines += ["", "## Kernels in part", "", "| operator | samples | library calls |", "| --- | --- | --- |"]
    for one in partly:
        samples_ = ", ".join(f"{one.counts[kind]} {kind}" for kind in KINDS if one.counts[kind])
        calls = ", ".join(f"`{name.removeprefix('aten.').removesuffix('.default')}`" for name in sorted(one.fallbacks))
        lines.append(f"| `{one.name}` | {samples_} | {calls} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4, help="of each dtype and operator")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.stdout.writelines(f"{line}\n" for line in report(covered(arguments.samples, arguments.only)))


if __name__ == "__main__":
    main()
