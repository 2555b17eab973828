"""Random programs over random shapes: one compiled function does as eager at all sizes, 0 and 1 among them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.differential import (
    DOUBLE,
    EXACT,
    Counts,
    Outcome,
    assert_same,
    assert_same_outcome,
    differentiate,
    observe,
)
from tests.programs.shapes.cases import Case, Sizes, cases

import stator

# Many combinations of sizes of 0 and 1; writes through views with gaps, which run in ATen
_EXCUSED = ("recompile_limit", "(as-strided)")
_SETTINGS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


def outcome(function: Any, case: Case, call: Sizes) -> tuple[Outcome, list[Any] | type]:
    """What one call does, and its gradients or the error of the backward. Layouts of gradients are free."""
    seen = observe(function, case.arguments(call))
    if seen.error is not None:
        return seen, []
    try:
        gradients = differentiate(seen.result, seen.arguments)
    except RuntimeError as error:  # a value that the backward needs was written to
        return seen, type(error)
    return seen, [None if one is None else one.contiguous() for one in gradients]


def check(case: Case, backend: str, dynamic: bool | None) -> None:
    stator.reset()
    program = case.function()
    compiled = stator.compile(program, backend=backend, dynamic=dynamic)
    tolerance = EXACT if backend == "eager" else DOUBLE
    counts, versions = Counts(), -1
    for turn in range(3):
        versions = counts.compilations
        for call in case.calls:
            (expected, expected_gradients), (found, gradients) = (
                outcome(function, case, call) for function in (program, compiled)
            )
            excused = (*_EXCUSED, "(backward)") if expected_gradients is RuntimeError else _EXCUSED
            said = [text for text in found.said if not any(reason in text for reason in excused)]
            try:
                if expected.error is None or found.error is None:
                    assert_same_outcome(found, expected, tolerance)
                    assert_same(gradients, expected_gradients, tolerance, "gradients")
                assert type(found.error) is type(expected.error)
                # what eager refuses (behind a break, a write through a view of a leaf) is left to eager to refuse
                assert not said or expected.error is not None
            except AssertionError as error:
                raise AssertionError(f"{call} in turn {turn}: {error}\n{case}\n{case.source}") from error
    # in the second turn a call may reach a version for the first time, which an earlier call had not compiled yet
    assert versions == counts.compilations, f"compiled anew in the third turn\n{case}\n{case.source}"


@pytest.mark.parametrize("dynamic", [True, None])
@settings(_SETTINGS, max_examples=40)
@given(cases())
def test_captured_programs_do_as_eager_at_all_sizes(dynamic: bool | None, case: Case) -> None:
    check(case, "eager", dynamic)


@settings(_SETTINGS, max_examples=12)
@given(cases())
def test_compiled_programs_do_as_eager_at_all_sizes(case: Case) -> None:
    check(case, "inductor", True)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@settings(_SETTINGS, max_examples=400)
@given(cases(most_steps=12))
def test_long_programs_do_as_eager_at_all_sizes(backend: str, dynamic: bool | None, case: Case) -> None:
    check(case, backend, dynamic)
