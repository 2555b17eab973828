"""Which steps of printed programs run as a segment: in a row, on one device, on tensors at settled addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.codegen.host import print_host
from stator.inductor.codegen.host.segments import Check, DeviceStep, join_segments, segment_texts
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.plan import plan
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group
from stator.prims.record import TensorMeta

STATIC = (1, 2, 3, 4)


def step(number: int, device: str = "cuda:0") -> DeviceStep:
    return DeviceStep.of(f"step_{number}()", device, f"step_{number}", (f"in_{number}", "shared"), ("shared",))


def joined(*lines: str) -> list[str]:
    return join_segments(lines, lambda steps: f"segment({', '.join(steps)})")


def test_only_steps_in_a_row_are_joined() -> None:
    a, b, c, d, e = map(step, range(5))
    assert joined(a, b, "x = 1", c, "del y", d, e, "return") == [
        f"segment({a}, {b})",
        "x = 1",
        c,
        "del y",
        f"segment({d}, {e})",
        "return",
    ]
    assert joined("x = 1", "return") == ["x = 1", "return"] and joined() == []
    assert joined(a, b, c) == [f"segment({a}, {b}, {c})"]


def test_checks_run_after_the_segment() -> None:
    a, b, c = map(step, range(3))
    assert joined(a, Check("check a"), b, Check("check b"), c) == [f"segment({a}, {b}, {c})", "check a", "check b"]
    assert joined(a, Check("check a"), "x = 1", Check("check x"), b) == [a, "check a", "x = 1", "check x", b]


def test_steps_of_other_devices_are_apart() -> None:
    a, b, c, d = step(0), step(1), step(2, "cuda:1"), step(3, "cuda:1")
    assert joined(a, b, c, d, a) == [f"segment({a}, {b})", f"segment({c}, {d})", a]


def test_a_segment_takes_each_tensor_once() -> None:
    text, tensors = segment_texts([step(0), step(1), step(0)])
    assert tensors == ["in_0", "shared", "in_1"]
    first, second = "(step_0, (0, 1), ('shared',))", "(step_1, (2, 1), ('shared',))"
    assert text == f"rt.segment('cuda:0', 3, ({first}, {second}, {first}))"


def printed(
    function: Callable[..., torch.Tensor], sizes: Sequence[tuple[int, ...]], device: str, **options: bool
) -> str:
    """The program of a function of bfloat16 tensors, of which those at STATIC are parameters."""
    mode = FakeMode()
    contiguous = [torch.empty(size, device="meta").stride() for size in sizes]
    given = [
        mode.make(TensorMeta(size, stride, torch.bfloat16, torch.device(device), 0))
        for size, stride in zip(sizes, contiguous, strict=True)
    ]
    with torch.no_grad():
        graph, knowledge = with_expressions(trace(function, given, keep=can_lower).graph)
    lowered = lower(run_passes(graph, False), False, knowledge)
    scheduled = schedule(lowered)
    kernels = {
        one.name: print_kernel(one, lowered.buffers, knowledge=lowered.sizes)
        for one in scheduled.steps
        if isinstance(one, Group)
    }
    return print_host(plan(lowered, scheduled, kernels, [lowered.inputs[at] for at in STATIC])).text


def mlp(x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor, w2: torch.Tensor, b2: torch.Tensor) -> torch.Tensor:
    for _ in range(2):
        h = F.gelu(torch.addmm(b1, F.layer_norm(x, (64,)), w1.t()))
        x = torch.tanh(torch.addmm(b2, h, w2.t()))
    return x


SIZES = [(32, 64), (128, 64), (128,), (64, 128), (64,)]


def lines(text: str) -> list[str]:
    body = text[text.index("with block.context:") :]
    return re.findall(r"^ +(\w+?)(?:_\d+)?\(", body, re.MULTILINE)


def test_steps_on_the_arena_and_parameters_are_segments() -> None:
    text = printed(mlp, SIZES, "cuda:0")
    # the first kernel reads an input, the last one writes a result
    assert [name for name in lines(text) if name != "if"] == ["kernel", "segment", "kernel"]
    bound = re.findall(r"segment_\d+ = rt\.segment\('cuda:0', \d+, (.*)\)$", text, re.MULTILINE)
    assert len(bound) == 1 and bound[0].count("mm_into") == 4 and bound[0].count("kernel_") >= 3


def test_equal_segments_are_apart() -> None:
    """Each remembers the addresses of its own tensors."""

    def residual(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return mlp(mlp(x, *weights) + x, *weights) + x

    bound = re.findall(r"(segment_\d+) = rt\.segment\((.*)\)$", printed(residual, SIZES, "cuda:0"), re.MULTILINE)
    assert len({name for name, _ in bound}) == 2 and len({text for _, text in bound}) == 1


def test_programs_on_cpus_have_no_segments() -> None:
    assert "segment" not in printed(mlp, SIZES, "cpu")
