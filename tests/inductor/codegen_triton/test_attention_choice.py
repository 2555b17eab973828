"""Which kernels run attention on a GPU: where a launch is the fastest, where ATen's kernels are, where neither may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.inductor.all_sizes import symbolic_fakes
from tests.inductor.claimed_gpu import attention_kernels, attention_of_a_gpu, scheduled_on_gpu

from stator.inductor.program import write_inputs
from stator.shapes.environment import Environment

CUDNN = "aten._scaled_dot_product_cudnn_attention.default"
LAUNCH, JOINED, SEPARATE = "launch", "launch and join", "separate kernels"
pytestmark = pytest.mark.fixed_sizes  # of fakes, which are made here


@pytest.fixture(autouse=True)
def an_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device((9, 0), monkeypatch)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attention_of_a_gpu)


def on_device(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)


def by_hand(q: Any, k: Any, v: Any, *biases: Any) -> Any:
    scores = q @ k.transpose(-1, -2) * 0.125
    for bias in biases:
        scores = scores + bias
    return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v


def called(q: Any, k: Any, v: Any, *biases: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, *biases)


def hidden(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """No sum of products and biases, which a call could take."""
    scores = (q @ k.transpose(-1, -2)).masked_fill(mask, -3e4)
    return torch.softmax(scores, -1) @ v


def sides(heads: int, rows: int, keys: int, width: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    return [torch.empty(1, one, heads, width, dtype=dtype).transpose(1, 2) for one in (rows, keys, keys)]


def bias(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def kernels(function: Any, tensors: list[torch.Tensor], *dims: Any) -> list[str]:
    fakes = symbolic_fakes(tensors, dims or [()] * len(tensors), Environment())
    return attention_kernels(scheduled_on_gpu(function, fakes)[0])


@pytest.mark.parametrize("function", (by_hand, called))
@pytest.mark.parametrize(
    ("tensors", "expected"),
    (
        pytest.param(sides(12, 128, 128), LAUNCH, id="short"),
        pytest.param([*sides(12, 128, 128), bias(1, 1, 1, 128)], LAUNCH, id="hidden keys"),
        pytest.param(sides(64, 1024, 1024), CUDNN, id="much work"),
        pytest.param([*sides(32, 1024, 1024), bias(32, 1024, 1024)], LAUNCH, id="much work with a bias"),
        pytest.param([*sides(64, 1024, 1024), bias(1024, 1024)], CUDNN, id="more work with a bias"),
        pytest.param([*sides(8, 512, 5000), bias(512, 5000)], CUDNN, id="many keys"),
        pytest.param([*sides(8, 1024, 1024, 256), bias(1024, 1024)], CUDNN, id="wide heads"),
        pytest.param([*sides(8, 1, 4096), bias(1, 4096)], JOINED, id="one row"),
        pytest.param([*sides(2, 64, 4096), bias(64, 4096)], JOINED, id="few rows"),
        pytest.param([*sides(64, 1, 65536), bias(1, 65536)], JOINED, id="a cache of many keys"),
        pytest.param(sides(12, 128, 128, dtype=torch.float32), LAUNCH, id="float32"),
    ),
)
def test_the_fastest_runs(function: Any, tensors: list[torch.Tensor], expected: str) -> None:
    assert kernels(function, tensors) == [expected]


@pytest.mark.parametrize("function", (by_hand, hidden))
def test_a_launch_runs_what_aten_does_not_take(function: Any) -> None:
    other = bias(512, 5000, dtype=torch.float32 if function is by_hand else torch.bool)
    assert kernels(function, [*sides(32, 512, 5000), other]) == [LAUNCH]


def test_one_row_of_float32_stays() -> None:
    assert kernels(by_hand, sides(16, 1, 2048, dtype=torch.float32)) == [SEPARATE]


def test_sizes_that_are_symbols() -> None:
    dims = [(None, None, "length")] * 3, [(None, None, "length", "length")]
    given = [*sides(32, 512, 512), bias(1, 1, 512, 512)]
    assert kernels(by_hand, given, *dims[0], *dims[1]) == [LAUNCH]


def test_other_devices_have_atens_kernels_for_long_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    on_device((8, 0), monkeypatch)
    for function in (by_hand, called):
        assert kernels(function, [*sides(8, 1024, 1024), bias(1024, 1024)]) == [CUDNN]
    assert kernels(by_hand, [*sides(8, 128, 128), bias(128, 128)]) == [SEPARATE]


@pytest.mark.parametrize("tensors", (sides(8, 128, 128, 512), sides(8, 128, 128, 20), sides(8, 64, 64, 65)))
def test_short_attention_that_no_launch_takes_stays(tensors: list[torch.Tensor]) -> None:
    assert kernels(by_hand, tensors) == [SEPARATE]


def test_caches_of_keys_are_written_in_place_and_not_copied() -> None:
    def decode(keys: Any, values: Any, at: Any, key: Any, value: Any, query: Any) -> Any:
        keys.index_copy_(2, at, key)
        values.index_copy_(2, at, value)
        return called(query, keys, values)

    caches, rows = ([torch.empty(1, 8, length, 64, dtype=torch.bfloat16) for _ in range(3)] for length in (2048, 1))
    tensors = [*caches[:2], torch.empty(1, dtype=torch.int64), *rows]
    found, lowered = scheduled_on_gpu(decode, symbolic_fakes(tensors, [()] * 6, Environment()))
    written = replace(lowered, mutated=tuple(zip(lowered.inputs[:2], (1, 2), strict=True)))
    _, steps = write_inputs(written, found)
    assert attention_kernels(steps) == attention_kernels(found) == [JOINED]
    assert len(steps.steps) == len(found.steps) - 2
