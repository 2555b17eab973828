"""Gradients of attention from its operands alone: programs and their gradients stay eager's, and the forward keeps
nothing that only ATen's kernel for gradients reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.claimed_gpu import scheduled_on_gpu
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import stator
from stator import pipeline
from stator.aot.trace import attention_gradients, attention_pattern
from stator.base import counters
from stator.graph.fake.fake_mode import FakeMode
from stator.graph.functionalization.functionalize import FunctionalTracer
from stator.inductor.codegen import triton
from stator.inductor.lower import can_lower
from stator.prims.record import TensorMeta

pytestmark = pytest.mark.filterwarnings("error:stator")
aten = torch.ops.aten
ON_CPU = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
found: list[Any] = []


@pytest.fixture
def on_cpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rewrite what CPUs have as if it were one of the kernels for GPUs."""
    names = "tangent", "query", "key", "value", "out", "logsumexp", "dropout", "is_causal"
    monkeypatch.setitem(attention_gradients.CALLS, ON_CPU, names)

    def rule(*asked: Any) -> bool:
        found.append(asked)
        return True

    monkeypatch.setattr(triton, "launch_computes_gradients", rule)
    found.clear()
    stator.reset()
    yield
    stator.reset()


def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
    sides = [one.transpose(1, 2) for one in (query, key, value)]
    return F.scaled_dot_product_attention(*sides, is_causal=causal).transpose(1, 2).flatten(2)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("wanted", ((0, 1, 2), (0,), (1, 2)))
def test_gradients(causal: bool, wanted: tuple[int, ...], on_cpus: None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 24, 3, 16).requires_grad_(at in wanted) for at in range(3)]
    tangent = torch.randn(2, 24, 48)
    results = []
    for function in (stator.compile(attend, options={"verify": True}), attend):
        out = function(*given, causal)
        results.append([out, *torch.autograd.grad(out, [given[at] for at in wanted], tangent)])
    assert found and found[0][2] == (6, 24, 24, 16, 16)
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.fixed_sizes
def test_the_forward_keeps_its_operands_alone(on_cpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[list[tuple[int, ...]]] = []
    compile_graph = pipeline.compile_graph

    def compiled(gm: Any, *args: Any, **options: Any) -> Any:
        (output,) = gm.graph.find_nodes(op="output")
        shapes.append([tuple(one.meta["val"].shape) for one in output.args[0] if one is not None])
        return compile_graph(gm, *args, **options)

    monkeypatch.setattr(pipeline, "compile_graph", compiled)
    query, key, value = [torch.randn(2, 24, 3, 16).requires_grad_() for _ in range(3)]
    stator.compile(attend)(query, key, value, False).sum().backward()
    assert (2, 3, 24) not in shapes[0]  # logarithms


@pytest.mark.fixed_sizes
def test_a_scaled_result_that_needs_dropout_stays(on_cpus: None) -> None:
    def dropped(query: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)

    stator.compile(dropped)(torch.randn(2, 3, 24, 16).requires_grad_()).sum().backward()
    assert not found


def fakes(*shapes: tuple[int, ...], offset: int = 0) -> list[Any]:
    """By rows: (batch, length, heads, width), shown as (batch, heads, length, width)."""
    mode, cpu = FakeMode(), torch.device("cpu")
    rows = [torch.empty(shape, device="meta").transpose(1, 2) for shape in shapes]
    return [mode.make(TensorMeta(tuple(x.shape), tuple(x.stride()), torch.bfloat16, cpu, offset)) for x in rows]


def masked_step(query: Any, key: Any, value: Any, mask: Any, tangent: Any) -> Any:
    """Masks have one head, or one row, or one example."""
    sides = query, key, value
    out, *rest = aten._scaled_dot_product_cudnn_attention(*sides, mask, True, 0.0, False, False, scale=0.25)
    numbers = rest[1:5]
    given = tangent, *sides, out, rest[0], *rest[5:7], mask, *numbers, 0.0, False
    return out, *aten._scaled_dot_product_cudnn_attention_backward(*given, scale=0.25)


@pytest.mark.parametrize("shape", ((16, 1, 128, 128), (16, 1, 1, 128), (1, 12, 128, 128), (1, 1, 1, 128)))
def test_masks_that_are_broadcast(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    batch, heads, rows, count = shape
    sides = fakes(*[(16, 128, 12, 64)] * 3, (batch, rows, heads, count), (16, 128, 12, 64))
    scheduled, _ = scheduled_on_gpu(masked_step, sides)
    names = [str(getattr(one, "name", "")) for one in scheduled.steps]
    assert sum(name.startswith(("attention_", "gradients_")) for name in names) == 2
    assert not any("cudnn" in name for name in names)


def step(query: Any, key: Any, value: Any, bias: Any, tangent: Any) -> Any:
    bias = bias.expand(query.shape[0], -1, -1, -1)
    out, *rest = aten._scaled_dot_product_efficient_attention(query, key, value, bias, True, 0.0, False, scale=0.25)
    given = tangent, query, key, value, bias, out, *rest, 0.0, [True] * 4, False
    return out, *aten._scaled_dot_product_efficient_attention_backward(*given, scale=0.25)


@pytest.mark.parametrize(
    ("length", "width", "launches"), ((49, 32, 2), (128, 64, 2), (200, 64, 0), (49, 20, 0), (128, 128, 0))
)
def test_launches_on_an_h100(length: int, width: int, launches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the forward and the gradients are launches, or neither: ATen's kernel for gradients wants logarithms."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    sides = fakes(*[(64, length, 3, width)] * 3, (1, length, 3, length), (64, length, 3, width))
    scheduled, _ = scheduled_on_gpu(step, sides)
    names = [str(getattr(one, "name", "")) for one in scheduled.steps]
    assert sum("attention" in name for name in names) == max(launches, 2) - (1 if launches else 0)
    assert sum(name.startswith(("attention_", "gradients_")) for name in names) == launches


def by_hand(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
    query, key, value = [one.transpose(1, 2) for one in (query, key, value)]
    scores = query @ key.transpose(-1, -2) * 0.3
    for bias in biases:
        scores = scores + bias
    weights = F.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return (weights @ value).transpose(1, 2).flatten(2)


BIASES = {
    "none": (),
    "keys": ((2, 1, 1, 20),),
    "matrix": ((20, 20),),
    "both": ((2, 1, 1, 20), (3, 20, 20)),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("special", ("", "hidden keys", "no key", "the smallest number"))
@pytest.mark.parametrize("name", list(BIASES))
def test_gradients_by_hand(name: str, special: str, on_cpus: None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 20, 3, 16).requires_grad_() for _ in range(3)]
    biases = [torch.randn(shape) for shape in BIASES[name]]
    if biases and special:
        hidden = torch.finfo(torch.float32).min if special == "the smallest number" else -torch.inf
        biases[0][..., 3:9] = hidden
        if special != "hidden keys":
            biases[0][0] = hidden
    tangent = torch.randn(2, 20, 48)
    before = counters.counts["fused_attention"]
    results = []
    for function in (stator.compile(by_hand, options={"verify": True}), by_hand):
        out = function(*given, *biases)
        results.append([out, *torch.autograd.grad(out, given, tangent)])
    assert counters.counts["fused_attention"] > before
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5, equal_nan=True)


def scaled_behind(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
    """The gradient of the bias is not that of the scores."""
    query, key, value = [one.transpose(1, 2) for one in (query, key, value)]
    scores = (query @ key.transpose(-1, -2) + biases[0]) * 0.3
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def doubled_bias(query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
    return by_hand(query, key, value, biases[0] * 2, biases[0].sin())


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((3, 20, 20), (2, 1, 1, 20), (2, 3, 20, 20)))
@pytest.mark.parametrize("function", (by_hand, doubled_bias, scaled_behind))
def test_gradients_of_a_bias(function: Any, shape: tuple[int, ...], dtype: torch.dtype, on_cpus: None) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 20, 3, 16).to(dtype).requires_grad_() for _ in range(3)]
    given.append(torch.randn(shape).to(dtype).requires_grad_())
    tangent = torch.randn(2, 20, 48)
    before = counters.counts["fused_attention"]
    results = []
    for one, cast in (
        (stator.compile(function, options={"verify": True}), dtype),
        (function, dtype),
        (function, torch.double),
    ):
        out = one(*[tensor.to(cast) for tensor in given])
        results.append([out, *torch.autograd.grad(out, given, tangent.to(cast))])
    assert (counters.counts["fused_attention"] > before) is (function is not scaled_behind)
    for mine, eager, exact in zip(*results, strict=True):
        errors = [float((one.double() - exact).norm() / exact.norm()) for one in (mine, eager)]
        assert errors[0] <= max(1.1 * errors[1], 1e-6)


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("scale", (1.0, None))
@pytest.mark.parametrize("wanted", ((0, 1, 2, 3), (3,), (0, 2)))
@pytest.mark.parametrize("batch", (1, 4))
def test_attention_that_widens_half_floats(
    batch: int, scale: float | None, wanted: tuple[int, ...], on_cpus: None
) -> None:
    """ATen's composite attention, which a bias that lies otherwise in memory gets; one row sees no key."""

    def function(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        composite = aten._scaled_dot_product_attention_math
        return composite(query, key, value, bias, 0.0, False, None, scale=scale)[0].transpose(1, 2).contiguous()

    torch.manual_seed(0)
    sides = [torch.randn(4, rows, 3, 16).bfloat16().transpose(1, 2) for rows in (64, 96, 96)]
    bias = torch.randn(batch, 64, 96, 3).bfloat16()
    bias[0, 3], bias[-1, 2, 5:] = -torch.inf, -torch.inf
    given = [*sides, bias.permute(0, 3, 1, 2)]
    tangent = torch.randn(4, 64, 3, 16).bfloat16()
    results = []
    before = counters.counts["fused_attention"]
    for call, dtype in ((function, torch.float64), (function, None), (stator.compile(function), None)):
        made = [one.to(dtype or one.dtype).requires_grad_(at in wanted) for at, one in enumerate(given)]
        out = call(*made)
        results.append([out, *torch.autograd.grad(out, [made[at] for at in wanted], tangent.to(out.dtype))])
    assert counters.counts["fused_attention"] > before and found
    for exact, eager, actual in zip(*results, strict=True):
        assert actual.stride() == eager.stride()
        errors = [float((one.double() - exact).norm() / exact.norm()) for one in (eager, actual)]
        assert errors[1] < (2 if batch == 1 else 1.25) * errors[0]  # gradients are rounded before they are added up


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("disabled", (False, True))
def test_other_attention_that_widens_half_floats_stays(disabled: bool, on_cpus: None) -> None:
    """Composite attention with a bias that any kernel takes, and where the program's settings allow no other."""

    def function(query: Tensor, bias: Tensor) -> Tensor:
        return aten._scaled_dot_product_attention_math(query, query, query, bias.transpose(2, 3))[0]

    before = counters.counts["fused_attention"]
    query, bias = torch.randn(4, 3, 64, 16).bfloat16().requires_grad_(), torch.randn(4, 3, 64, 64).bfloat16()
    allowed = [SDPBackend.MATH, *([] if disabled else [SDPBackend.FLASH_ATTENTION])]
    with sdpa_kernel(allowed):
        stator.compile(function)(query, bias if disabled else bias.transpose(2, 3)).sum().backward()
    assert counters.counts["fused_attention"] == before


@pytest.mark.parametrize("device", ("cpu", "cuda"))
def test_weights_of_composite_attention_are_found(device: str) -> None:
    tracer = FunctionalTracer(can_lower)
    node = tracer.graph.placeholder("scores")
    node.meta["val"] = meta = TensorMeta((2, 4, 8, 8), (256, 64, 8, 1), torch.float32, torch.device(device, 0))
    scores = tracer.bind(tracer.make(meta), node)
    with torch._C._InferenceMode(False), torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), tracer:
        weights = aten._safe_softmax.default(scores, -1)
    (softmax,) = attention_pattern.softmaxes(tracer.graph)
    assert attention_pattern.safe_weights(softmax) is tracer.current(weights)
