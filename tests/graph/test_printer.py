"""Graphs print as Python that runs again, with types and the user's lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from stator.base.errors import UserPlace
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.ir.format import format_meta
from stator.graph.printer import load_graph, print_graph
from stator.graph.tracing.tracer import trace
from stator.prims.record import TensorMeta


def program(x: torch.Tensor, y: torch.Tensor) -> Any:
    scaled = torch.where(x > 0, x, -math.inf).clamp(max=torch.finfo(x.dtype).max)
    halves = torch.cat([scaled, y.to(torch.bfloat16).to(x.dtype)], -1).split([2, 6], 1)
    numbers = torch.arange(4, device="cpu", dtype=torch.int32) + torch.tensor([1, 2, 3, 4])
    image = y.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    return halves[1].sum((0, 1), keepdim=True), numbers, image * 1e-5, F.pad(x, (1, 0), value=float("nan"))


def test_printed_text_runs_again_and_gives_the_same() -> None:
    inputs = [torch.randn(3, 4), torch.randn(3, 4)]
    traced = trace(program, inputs, keep=lambda op: True)
    text = print_graph(traced.graph, name="again", title="example")
    again = load_graph(text, traced.constants, name="again")
    for result, expected in zip(again(*inputs), program(*inputs), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)
    assert "# f32[1, 3, 2, 2] strides (12, 1, 6, 3)" in text
    assert text.startswith('"""example: 2 inputs, ')


def test_a_graph_of_torch_calls_prints_and_runs_again() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    with FakeMode() as mode:
        x.meta["example_value"] = mode.from_real(torch.ones(2, 3))
    part = graph.call_method("view", (x, 3, -1))
    product = graph.call_function(torch.matmul, (x, part))
    root = graph.call_function(math.floor, (2.5,))
    graph.output((graph.call_function(F.gelu, (product,), {"approximate": "tanh"}), root))
    text = print_graph(fx.GraphModule({}, graph))
    value = torch.randn(2, 3)
    result, number = load_graph(text)(value)
    assert torch.equal(result, F.gelu(value @ value.view(3, -1), approximate="tanh"))
    assert number == 2
    assert "x,  # f32[2, 3]" in text


def test_the_users_line_stands_above_what_it_became(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("def forward(x):\n    return torch.sin(x) + 1\n")
    graph = fx.Graph()
    x = graph.placeholder("x")
    sine = graph.call_function(torch.sin, (x,))
    total = graph.call_function(torch.add, (sine, 1))
    for node in (sine, total):
        node.meta["place"] = UserPlace(str(source), 2, "forward")
    graph.output((total,))
    traced = trace(fx.GraphModule({}, graph), [torch.ones(3)], keep=lambda op: True)
    comments = [line.strip() for line in print_graph(traced.graph).splitlines() if "model.py" in line]
    assert comments == [f"# {source}:2 in forward: return torch.sin(x) + 1"]


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        (TensorMeta((2, 3), (3, 1), torch.float32, torch.device("cpu")), "f32[2, 3]"),
        (TensorMeta((), (), torch.bool, torch.device("cpu")), "b8[]"),
        (TensorMeta((2, 3), (1, 2), torch.bfloat16, torch.device("cpu"), 4), "bf16[2, 3] strides (1, 2) offset 4"),
        (TensorMeta((5,), (1,), torch.int64, torch.device("cuda:1")), "i64[5] cuda:1"),
        ((TensorMeta((1,), (1,), torch.uint8, torch.device("cpu")), None, 3), "(u8[1], None, 3)"),
    ],
)
def test_format_meta(meta: Any, text: str) -> None:
    assert format_meta(meta) == text
