"""Random programs of views, writes and grad modes: compiled for training they behave as eager, gradients included."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings
from tests.aot.trace.random_views import Program, aliasing, draw_step, verify_and_run
from torch import fx

from stator.aot import compile_training, keep_all
from stator.base.errors import Unsupported

TOLERANCE = dict(rtol=1e-6, atol=1e-6)
REFUSED = ("overlapping-inputs", "aliased-gradient", "requires-grad-output", "as-strided", "view-mutation")


def starts() -> list[torch.Tensor]:
    """Leaves: two that require grad and one that does not."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 3), (3, 4), (4, 3)]
    leaves = [torch.randn(*shape, generator=generator) for shape in shapes]
    return [leaf.requires_grad_(index < 2) for index, leaf in enumerate(leaves)]


def inputs_from(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """A leaf, a tensor with a history that is a view, one that is not, and a plain tensor."""
    first, second, plain = leaves
    return [first, second * 2, (second * 3).t(), plain.clone()]


def draw_program(draw: Any) -> tuple[fx.GraphModule, int] | None:
    """A graph and how many of its outputs go into the loss, or None where eager itself refuses the program."""
    program = Program(inputs_from(starts()))
    try:
        for _ in range(draw(st.integers(1, 7))):
            kind = draw(st.sampled_from(["view", "view", "write", "combine", "combine", "value", "mode"]))
            if kind == "mode":
                enabled = draw(st.booleans())
                torch._C._set_grad_enabled(enabled)
                program.graph.call_function(torch._C._set_grad_enabled, (enabled,))
            else:
                draw_step(draw, program, kind)
    except RuntimeError:  # in place on a leaf, on a view of a leaf, or on a result of a multi-output view
        return None
    finally:
        torch._C._set_grad_enabled(True)
    count = draw(st.integers(1, 4))
    return program.finish([draw(st.integers(0, len(program.values) - 1)) for _ in range(count)]), count


def run(function: Any, used: list[int]) -> tuple[Any, ...]:
    """Outputs, inputs after the call, gradients of the leaves; or None where autograd refuses."""
    leaves = starts()
    inputs = inputs_from(leaves)
    outputs = function(*inputs)
    torch._C._set_grad_enabled(True)
    shown = [t for t in (*outputs, *inputs) if isinstance(t, torch.Tensor)]
    known = [(t.requires_grad, t.is_leaf) for t in shown]
    candidates = [outputs[i] for i in used] + inputs[1:]
    losses = [(t * (i + 2)).sum() for i, t in enumerate(candidates) if t.requires_grad and t.is_floating_point()]
    if losses:
        torch.stack([loss.double() for loss in losses]).sum().backward()
    return [t.detach() for t in shown], known, [leaf.grad for leaf in leaves], aliasing(shown)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_programs_train_as_eager(data: st.DataObject) -> None:
    drawn = draw_program(data.draw)
    if drawn is None:
        return
    gm, count = drawn
    used = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    warnings.simplefilter("ignore")
    try:
        values, known, gradients, shared = run(gm, used)
    except RuntimeError:  # a value that the backward needs was written to
        return

    try:
        compiled = compile_training(gm, inputs_from(starts()), verify_and_run, keep=keep_all)
    except Unsupported as error:
        # eager would refuse the backward of another output
        inplace = error.kind == "backward" and "modified by an inplace operation" in str(error)
        assert inplace or error.kind in REFUSED, str(gm.graph)
        return
    ours_values, ours_known, ours_gradients, ours_shared = run(compiled, used)
    for position, (actual, expected) in enumerate(zip(ours_values, values, strict=True)):
        torch.testing.assert_close(
            actual,
            expected,
            equal_nan=True,
            check_stride=expected.numel() > 0,
            msg=lambda text, at=position: f"value {at}: {text}\n{gm.graph}",
            **TOLERANCE,
        )
    assert ours_known == known, str(gm.graph)
    assert ours_shared == shared, str(gm.graph)
    for actual, expected in zip(ours_gradients, gradients, strict=True):
        assert (actual is None) == (expected is None), str(gm.graph)
        if expected is not None:
            torch.testing.assert_close(actual, expected, equal_nan=True, **TOLERANCE)
