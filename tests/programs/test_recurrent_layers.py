"""LSTM, GRU and RNN layers are one operator each, forward and backward, and have eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import Counts
from tests.onednn import needs_lstm_in_bfloat16
from torch.utils._pytree import tree_leaves

import stator
from stator import aot
from stator.aot.trace.joint import trace_joint
from stator.inductor.lower import can_lower

KINDS = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"bidirectional": True, "batch_first": True},
    {"bias": False, "dropout": 0.5},
    {"proj_size": 5, "bidirectional": True},
    {"nonlinearity": "relu"},
]
TOLERANCES = {torch.float32: 5e-6, torch.float64: 1e-13, torch.bfloat16: 3e-2}
CASES = [
    pytest.param(kind, given, id="-".join((kind, *map(str, given))))
    for kind in KINDS
    for given in OPTIONS
    if ("proj_size" not in given or kind == "lstm") and ("nonlinearity" not in given or kind == "rnn")
]
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")


def layers(kind: str, size: int = 7, **given: Any) -> torch.nn.RNNBase:
    torch.manual_seed(0)
    return KINDS[kind](4, size, num_layers=2, **given)


def step(call: Any, module: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """All results, and the gradients of the sum of their squares."""
    torch.manual_seed(1)
    results = tree_leaves(call(x))
    loss = sum(result.square().sum() for result in results)
    return [*results, *torch.autograd.grad(loss, [x, *module.parameters()])]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype is theirs.dtype and mine.stride() == theirs.stride()
        assert (mine - theirs).abs().max() <= tolerance * theirs.abs().max()


@pytest.mark.each_pair
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("steps", [3, 9])
@pytest.mark.parametrize("kind, given", CASES)
def test_results_and_gradients(kind: str, given: dict[str, Any], steps: int, dtype: torch.dtype) -> None:
    """Short sequences are unrolled; dropout draws eager's numbers."""
    module = layers(kind, **given).to(dtype)
    x = torch.randn((2, steps, 4) if "batch_first" in given else (steps, 2, 4), dtype=dtype, requires_grad=True)
    compiled = stator.compile(module, fullgraph=True, options={"exact_random": True})
    assert_close(step(compiled, module, x), step(module, module, x), TOLERANCES[dtype])
    with torch.no_grad():
        module.eval()
        assert_close(tree_leaves(compiled(x)), tree_leaves(module(x)), TOLERANCES[dtype])


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind, given", CASES)
def test_batches_of_any_size(kind: str, given: dict[str, Any], steps: int) -> None:
    module, counts = layers(kind, **given).double().eval(), Counts()
    compiled = stator.compile(module, fullgraph=True)
    for batch in (3, 5, 1, 8):
        shape = (batch, steps, 4) if "batch_first" in given else (steps, batch, 4)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert_close(step(compiled, module, x), step(module, module, x), 1e-12)
        with torch.no_grad():
            assert_close(tree_leaves(compiled(x)), tree_leaves(module(x)), 1e-12)
    assert counts.compilations == 4


@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_eagers_under_exact_rounding(kind: str) -> None:
    module, x = layers(kind), torch.randn(9, 2, 4, requires_grad=True)
    compiled = stator.compile(module, fullgraph=True, options={"exact_rounding": True})
    assert_close(step(compiled, module, x), step(module, module, x), 0)


@pytest.mark.parametrize("kind, given", CASES)
def test_the_number_of_nodes_does_not_depend_on_the_number_of_steps(kind: str, given: dict[str, Any]) -> None:
    module = layers(kind, **given)
    for keep in (can_lower, aot.keep_all):
        counts = set()
        for steps in (8, 64):
            joint = trace_joint(module, [torch.randn(steps, steps, 4)], keep=keep, captured=list(module.parameters()))
            counts.add(len(joint.graph.graph.nodes))
        assert len(counts) == 1


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("kind, given", CASES)
def test_autocast(kind: str, given: dict[str, Any], needs_grad: bool) -> None:
    if kind == "lstm":
        needs_lstm_in_bfloat16()
    module, x = layers(kind, **given).eval(), torch.randn(9, 9, 4, requires_grad=needs_grad)

    def program(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    compiled = stator.compile(program, fullgraph=True)
    if needs_grad:
        assert_close(step(compiled, module, x), step(program, module, x), 5e-2)
    else:
        with torch.no_grad():
            assert_close(tree_leaves(compiled(x)), tree_leaves(program(x)), 3e-2)


def test_saved_tensors_that_a_hook_copies() -> None:
    """oneDNN's workspace gets lost."""
    module, x = layers("lstm"), torch.randn(9, 2, 4, requires_grad=True)
    compiled = stator.compile(module, fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda kept: kept):
        found = step(compiled, module, x)
    assert_close(found, step(module, module, x), 5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives(kind: str) -> None:
    """They run eagerly."""
    module, x = layers(kind), torch.randn(9, 2, 4, requires_grad=True)
    compiled = stator.compile(module, fullgraph=True)
    results = []
    for call in (compiled, module):
        (first,) = torch.autograd.grad(call(x)[0].square().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), [x, *module.parameters()]))
    assert_close(list(results[0]), list(results[1]), 1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_of_changing_lengths(kind: str, dynamic: bool | None) -> None:
    """The layer runs between graphs, because ATen reads how many sequences have each step."""
    module = layers(kind)

    def program(x: torch.Tensor) -> Any:
        lengths = [max(1, x.shape[0] - 2 * row) for row in range(x.shape[1])]
        packed = torch.nn.utils.rnn.pack_padded_sequence(x * 2, torch.tensor(lengths))
        output, state = module(packed)
        return torch.nn.utils.rnn.pad_packed_sequence(output)[0] + 1, state

    compiled = stator.compile(program, dynamic=dynamic)
    for steps, rows in ((5, 2), (7, 2), (9, 3), (7, 1)):
        x = torch.randn(steps, rows, 4, requires_grad=True)
        assert_close(step(compiled, module, x), step(program, module, x), 5e-6)


def test_arguments_that_do_not_fit_have_eagers_error() -> None:
    module = layers("gru")

    def program(x: torch.Tensor) -> Any:
        return torch.gru(x, torch.zeros(2, 2, 6), module._flat_weights, True, 2, 0.0, False, False, False)

    with pytest.raises(RuntimeError) as expected:
        program(torch.randn(9, 2, 4))
    with pytest.raises(RuntimeError) as found:
        stator.compile(program)(torch.randn(9, 2, 4))
    assert str(found.value) == str(expected.value)
