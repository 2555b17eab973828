"""Every shape rule says what eager returns: shape, strides, dtype, device, offset and aliasing, on OpInfo's samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiated import differentiated
from recorder import ShapeRuleCheck
from samples import IDENTIFIERS, LAYOUTS, OPERATORS, laid_out, samples

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features


def check(op: Any, count: int, layouts: tuple[str, ...], composite: bool) -> None:
    """Run samples as they are, where they must work, and in other layouts, where eager may refuse them.

    composite: let the rules also see the operators that eager takes apart into others above the dispatch mode.
    """
    torch.manual_seed(0)
    checker = ShapeRuleCheck()

    def run(sample: tuple[Any, Any, Any]) -> None:
        tensor, args, kwargs = sample
        with torch.no_grad():
            if composite:
                with torch._C._AutoDispatchBelowAutograd(), checker:
                    op(tensor, *args, **kwargs)
            else:
                with checker:
                    op(tensor, *args, **kwargs)

    for sample in samples(op, count):
        run(sample)
        for layout in layouts:
            try:
                run(laid_out(sample, layout))
            except (RuntimeError, ValueError, TypeError, IndexError):
                continue
    fail_on_mismatches(checker)


def fail_on_mismatches(checker: ShapeRuleCheck) -> None:
    assert not checker.mismatches, "\n".join(
        f"{target}:\n    " + "\n    ".join(problems) for target, problems in checker.mismatches.items()
    )


@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_rule_predicts_what_eager_returns(op: Any) -> None:
    check(op, 2, ("transposed", "channels_last"), composite=False)


@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_rule_of_composite_operator_predicts_what_eager_returns(op: Any) -> None:
    check(op, 2, (), composite=True)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_rule_predicts_what_eager_returns_in_every_layout(op: Any) -> None:
    check(op, 40, tuple(LAYOUTS), composite=False)
    check(op, 40, tuple(LAYOUTS), composite=True)


def check_gradients(
    op: Any, count: int, layouts: tuple[str | None, ...], tangents: dict[torch.dtype, tuple[str | None, ...]]
) -> None:
    """The operators of the backward. `tangents`: the layouts of tangents in each dtype, None for the results'."""
    torch.manual_seed(0)
    checker = ShapeRuleCheck()
    for dtype, names in tangents.items():
        for case in differentiated([op], count, layouts, (dtype,)):
            for change in map(LAYOUTS.get, names):
                with checker:
                    case.run(case.tensors(), case.tangents if change is None else list(map(change, case.tangents)))
    fail_on_mismatches(checker)


@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_rule_predicts_what_eager_returns_in_the_backward(op: Any) -> None:
    check_gradients(
        op,
        1,
        (None, "transposed"),
        {torch.float32: (None, *LAYOUTS), torch.complex64: (None,), torch.bfloat16: (None,)},
    )


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS, ids=IDENTIFIERS)
def test_rule_predicts_what_eager_returns_in_the_backward_in_every_layout(op: Any) -> None:
    every = (None, *LAYOUTS)
    check_gradients(op, 20, every, dict.fromkeys((torch.float32, torch.complex64, torch.bfloat16), every))
