"""Random programs of views and in-place writes: what aot compiles behaves as the program itself, aliasing included."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, given, settings
from tests.aot.trace.random_views import Program, aliasing, combinations, make_inputs, values_of, views_of, writes_to
from torch import fx

from stator.aot import RunOverlapping, compile_inference, keep_all, run_eagerly, with_shared_memory
from stator.base.errors import Unsupported
from stator.graph.verifier import verify


def _compile(compile_graph: Any, gm: fx.GraphModule, inputs: Any, run_overlapping: RunOverlapping) -> Any:
    return compile_inference(gm, inputs, compile_graph, keep=keep_all, run_overlapping=run_overlapping)


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_views_and_writes_behave_as_eager(data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from(["plain", "strided", "offset", "gaps", "twice", "overlapping"]))
    program = Program(make_inputs(layout))
    for _ in range(data.draw(st.integers(1, 7))):
        position = data.draw(st.integers(0, len(program.values) - 1))
        value = program.values[position]
        kind = data.draw(st.sampled_from(["view", "view", "write", "write", "combine", "value"]))
        if kind == "combine":
            combination = combinations(data.draw, program, position)
            if combination is not None:
                program.combine(position, combination[1], combination[0][1])
            continue
        call = (
            views_of(data.draw, value)
            if kind == "view"
            else writes_to(data.draw, value)
            if kind == "write"
            else values_of(data.draw)
        )
        if call[1] == "sum" and value.dim() == 0:
            continue
        program.add(position, call)
    count = data.draw(st.integers(1, 4))
    gm = program.finish([data.draw(st.integers(0, len(program.values) - 1)) for _ in range(count)])

    def checked(graph: fx.GraphModule, inputs: Any) -> Any:
        verify(graph)
        return run_eagerly(graph, inputs)

    expected_inputs, inputs = make_inputs(layout), make_inputs(layout)
    with torch.no_grad():
        expected = gm(*expected_inputs)
        try:
            compiled = with_shared_memory(gm, inputs, partial(_compile, checked))
        except Unsupported:
            # allowed only for writes through `unfold` into memory met in its middle
            unfolds = any(node.target == "unfold" for node in gm.graph.nodes)
            assert layout in ("offset", "overlapping") and unfolds, str(gm.graph)
            return
        results = compiled(*inputs)
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(
            result, reference, rtol=0, atol=0, equal_nan=True, check_stride=reference.numel() > 0
        )
    for own, reference in zip(inputs, expected_inputs, strict=True):
        torch.testing.assert_close(own, reference, rtol=0, atol=0, equal_nan=True)
    assert aliasing([*inputs, *results]) == aliasing([*expected_inputs, *expected])
    for result, reference in zip(results, expected, strict=True):
        assert result.is_contiguous() == reference.is_contiguous()
