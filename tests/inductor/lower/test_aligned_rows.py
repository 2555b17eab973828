"""Products on GPUs of matrices with rows of odd lengths: rows lie at multiples of 16 bytes, values and strides are
eager's. Needs no GPU: the reference evaluator runs the lowered graphs on the CPU, and what lies between rows is NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.lower.as_on_gpu import GPU, Compiled, distance, lower_on_gpu, outcome
from tests.inductor.lower.language_head import Head
from torch import nn

import stator
from stator.inductor.buffers import Extern, Layout, Loops, Lowered, View
from stator.inductor.lower import aligned_rows
from stator.prims.layout import same_strides
from stator.shapes.expr import Symbol

pytestmark = pytest.mark.fixed_sizes  # the reference evaluator knows no symbols
WORDS = 91  # rows of 182 bytes
REST = 8  # more elements along each loop make a product large


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """With a library so slow that products of the tests' sizes are large."""
    _slow_library(monkeypatch)
    return lower_on_gpu(monkeypatch)


def _slow_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aligned_rows, "_RATES", {step: rate / 1e7 for step, rate in aligned_rows._RATES.items()})


@pytest.fixture
def compiled_for_speed(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return lower_on_gpu(monkeypatch)


class Hidden(nn.Module):
    """Layers with a hidden value of odd width, whose bias and gradient are loops."""

    def __init__(self, width: int = WORDS, *, bias: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, width, bias), nn.Linear(width, 24, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(F.gelu(self.one(x)))


class Autocast(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return self.module(x)


def products(lowered: Lowered) -> Iterator[tuple[Extern, list[Layout], Layout]]:
    """The calls of products with the layouts of their sides and of their results."""
    for node in lowered.nodes:
        if isinstance(node, Extern) and node.name in ("aten.mm.out", "aten.addmm.out"):
            given = [*node.args[-2:], node.kwargs["out"] if "out" in node.kwargs else node.outputs[0]]
            layouts = [one.layout if isinstance(one, View) else lowered.buffers[one].layout for one in given]
            yield node, layouts[:2], layouts[2]


def slow(compiled: Compiled) -> list[str]:
    """Large products of sides with rows that begin or end at other places than multiples of 16 bytes, where the rows of
    the result do not."""
    found = []
    for lowered, _ in compiled.graphs:
        for node, sides, result in products(lowered):
            (rows, columns), depth = result.size, sides[0].size[1]
            if min(rows, columns, depth) < REST or columns % 8:
                continue
            for one in sides:
                (down, across), (many, few) = one.stride, one.size
                step, length = (down, few) if across == 1 else (across, many)
                if any(number * one.dtype.itemsize % 16 for number in (step, length, one.offset)):
                    found.append(f"{node.name} of {node.origins}: {one}")
    return found


def copies(compiled: Compiled) -> list[str]:
    """Matrices with as many rows or columns as words that loops only copy."""
    return [
        name
        for lowered, _ in compiled.graphs
        for node in lowered.nodes
        if isinstance(node, Loops) and {op.name for op in node.body.ops} == {"load", "store"}
        for name in node.outputs
        if {WORDS, 96} & {*lowered.buffers[name].layout.size} and len(node.body.ranges) > 1
    ]


def check(call: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> None:
    """Results and gradients, and strides of results."""
    eager, actual = outcome(model, model, x), outcome(call, model, x)
    for got, want in zip(actual, eager, strict=True):
        assert not got.isnan().any()
        assert distance(got, want) < 2e-2
        assert same_strides(want.shape, got.stride(), want.stride())


@pytest.mark.parametrize("gives_logits", [False, True])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_logits_have_aligned_rows(compiled, dtype, bias, gives_logits):
    model = Head(WORDS, bias=bias, gives_logits=gives_logits).to(dtype)
    check(stator.compile(model), model, torch.randn(2, 8, 32).to(dtype))
    assert [len([*products(lowered)]) for lowered, _ in compiled.graphs] == [1, 4]
    assert slow(compiled) == []
    assert copies(compiled) == []


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("width", [WORDS, 90])
@pytest.mark.parametrize("rows", [16, 13])
def test_loops_store_hidden_values_and_rounded_weights_in_aligned_rows(compiled, rows, width, training, bias):
    model = Autocast(Hidden(width, bias=bias)).train(training)
    check(stator.compile(model), model, torch.randn(rows, 32))
    assert slow(compiled) == [] and (width != WORDS or rows != 16 or copies(compiled) == [])


def test_parameters_and_inputs_with_odd_rows_are_copied_once(compiled):
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.Linear(WORDS, 24, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x).sin() + self.two(x).cos()

    model, x = Twice().bfloat16().eval(), torch.randn(16, WORDS).bfloat16()
    check(stator.compile(model), model, x)
    assert slow(compiled) == [] and len(copies(compiled)) == 3


def test_a_gradient_from_outside_is_copied_once(compiled):
    model, x = Head(WORDS, gives_logits=True).bfloat16(), torch.randn(2, 8, 32).bfloat16().requires_grad_()
    logits = stator.compile(model)(x)[1]
    logits.backward(torch.randn(logits.shape).bfloat16())
    assert len([*products(compiled.graphs[1][0])]) == 4
    assert slow(compiled) == [] and len(copies(compiled)) == 1


def test_library_calls_read_eagers_strides(compiled):
    class Reader(Hidden):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            hidden = F.gelu(self.one(x))
            flat = hidden.view(-1)
            return self.two(hidden), flat[5:].exp(), hidden.cumsum(0), hidden[1:, 3:].contiguous().view(-1, 11).amax(1)

    model, x = Reader().bfloat16().eval(), torch.randn(12, 32).bfloat16()
    check(stator.compile(model), model, x)
    assert slow(compiled) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_outside_of_tensor_cores_stay_as_they_are(compiled, dtype):
    model = Head(WORDS).to(dtype)
    check(stator.compile(model), model, torch.randn(2, 8, 32).to(dtype))
    assert len(slow(compiled)) > 0


def test_float32_in_tensor_cores_counts_too(compiled, monkeypatch):
    monkeypatch.setattr(aligned_rows, "_in_tensor_cores", lambda dtype: True)
    model = Hidden()
    check(stator.compile(model), model, torch.randn(16, 32))
    assert slow(compiled) == []


def test_small_products_stay_as_they_are(compiled_for_speed):
    model = Head(WORDS).bfloat16()
    check(stator.compile(model), model, torch.randn(2, 8, 32).bfloat16())
    assert len(slow(compiled_for_speed)) == 2


def test_only_known_sizes_are_judged():
    rows, words, half = Symbol("s0"), 50257, torch.bfloat16
    assert aligned_rows.gain((2048, 768, words), [words, words, 768, 768], half, GPU) > 500
    assert aligned_rows.gain((rows, 768, words), [words, words, 768, 768], half, GPU) == 0
    assert aligned_rows.gain((2048, 768, rows), [rows, rows, 768, 768], half, GPU) == 0
    assert aligned_rows.gain((2048, 768, words), [words, words, 768, 768], half, torch.device("cpu")) == 0
    assert aligned_rows.gain((2048, 768, 50260), [50260, 50260, 768, 768], half, GPU) == 0  # not measured
    assert aligned_rows.gain((2048, 768, 50264), [50264, 50264, 768, 768], half, GPU) == 0


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["logits", "loss", "hidden", "hidden, autocast", "odd rows"])
def test_whole_programs(monkeypatch, kind, training, dynamic):
    """As for a GPU, with kernels and a host program for the CPU."""
    monkeypatch.setattr(aligned_rows, "DEVICES", ("cpu",))
    _slow_library(monkeypatch)
    model = Hidden() if "autocast" in kind else Hidden().bfloat16()
    if kind in ("logits", "loss"):
        model = Head(WORDS, bias=True, gives_logits=kind == "logits").bfloat16()
    model = Autocast(model) if "autocast" in kind else model
    call = stator.compile(model.train(training), dynamic=dynamic, options={"verify": True})
    x = torch.randn(2, 9 if kind == "odd rows" else 8, 32).to(next(model.parameters()).dtype)
    for turn in range(3):
        check(call, model, x * (turn + 1))
