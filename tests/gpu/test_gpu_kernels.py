"""Printed Triton kernels on the device: handwritten and random graphs of loop nodes beside the reference evaluator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda
from tests.gpu.moved import module_of

import stator
from stator import pipeline
from stator.dynamo import backend, frame_compiler
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.loops.float8 import BYTES
from stator.inductor.schedule import schedule
from stator.runtime.cuda.kernels import load_kernels

harness, random_graphs, handwritten, float8 = map(
    module_of,
    (
        *("inductor/kernel_harness.py", "inductor/random_graphs.py"),
        *("inductor/codegen_triton/handwritten.py", "inductor/loops/test_float8.py"),
    ),
)
pytestmark = only_cuda

# The device library is accurate to a few ULP, and sums are taken in another order. Graphs compute in float32 what they
# store in float64.
RELATIVE, ABSOLUTE = 5e-5, 5e-6


def check(graph: Any) -> None:
    expected = harness.run_reference(graph)
    memory = {buffer: tensor.to(DEVICE) for buffer, tensor in harness.fresh_memory(graph).items()}
    for group in schedule(graph.lowered()).steps:
        source = print_kernel(group, graph.buffers)
        tensors = [memory[buffer] for buffer in (*group.reads, *group.writes)]
        (kernel,) = load_kernels([source], torch.device(DEVICE)).values()
        kernel.bind(len(tensors))(*tensors)
    for output, value in expected.items():
        actual = harness.view(graph, memory, output).cpu()
        tolerance = {"rtol": RELATIVE, "atol": ABSOLUTE} if value.dtype in (torch.float32, torch.float64) else {}
        torch.testing.assert_close(actual, value, equal_nan=True, **tolerance)


@pytest.mark.parametrize("name", handwritten.GRAPHS)
def test_handwritten_graph(name: str) -> None:
    check(handwritten.GRAPHS[name]())


@pytest.mark.parametrize("dtype", BYTES, ids=str)
def test_8_bit_floats(dtype: torch.dtype) -> None:
    """As eager converts them on the same device, bit by bit."""
    numbers = float8.numbers(torch.float32).to(DEVICE)
    narrow, expected = stator.compile(lambda x: x.to(dtype), fullgraph=True)(numbers), numbers.to(dtype)
    float8.assert_same_bits(narrow, expected)
    float8.assert_same_bits(stator.compile(lambda x: x.float(), fullgraph=True)(expected), expected.float())


@pytest.mark.parametrize("seed", range(40))
def test_random_graph(seed: int) -> None:
    check(random_graphs.Generator(seed).build())


@pytest.mark.parametrize("device", [DEVICE, "cpu"])
def test_kernels_compile_in_a_process_that_starts_before_the_capture(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, capture = [], frame_compiler.capture
    monkeypatch.setattr(backend.cuda, "prepare", lambda program: order.append("start"))
    monkeypatch.setattr(frame_compiler, "capture", lambda *a, **k: order.append("capture") or capture(*a, **k))
    torch.cuda.init()
    x = torch.randn(50, device=device)
    made = stator.compile(lambda batch: batch["x"].sin() + batch["x"])({"x": x})
    torch.testing.assert_close(made, x.sin() + x)
    assert order[0] == ("capture" if device == "cpu" else "start") and "capture" in order


def test_kernels_of_a_graph_compile_while_others_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    started, loaded = [], []
    start, load = pipeline.cuda.start_kernel, pipeline.cuda.load_kernels

    def note_start(kernel: Any, device: torch.device) -> None:
        assert not loaded
        started.append(kernel.symbol)
        start(kernel, device)

    def note_load(kernels: Any, device: torch.device) -> Any:
        loaded.extend(kernel.symbol for kernel in kernels)
        return load(kernels, device)

    monkeypatch.setattr(pipeline.cuda, "start_kernel", note_start)
    monkeypatch.setattr(pipeline.cuda, "load_kernels", note_load)

    def attended(x: torch.Tensor) -> torch.Tensor:
        """A call of the library stands between two kernels."""
        return (x.softmax(1) @ x.t()).cos().sum(0)

    x = torch.randn(64, 1000, device=DEVICE)
    torch.testing.assert_close(stator.compile(attended)(x), attended(x), rtol=1e-4, atol=1e-4)
    assert len(set(loaded)) >= 2 and set(started) == set(loaded)
