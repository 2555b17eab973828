"""`exact_rounding`: results and gradients of compiled programs equal eager's to the last bit."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from benchmarks.measure_training import Trainer
from benchmarks.training_models import NAMES, build_training
from torch.nn import functional as F

import stator
from stator.base import counters

OPTIONS = {"exact_rounding": True, "verify": True}


def same_bits(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Any NaN is any other NaN."""
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return False
    equal = actual == expected
    if expected.is_floating_point():
        equal = (equal & (actual.signbit() == expected.signbit())) | (actual.isnan() & expected.isnan())
    return bool(equal.all())


class Block(torch.nn.Module):
    """Convolutions, statistics of batches and rows, a product, softmax: what kernels add up in other orders."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 24, 3, bias=False)
        self.depthwise = torch.nn.Conv2d(24, 24, 5, groups=24, stride=2)
        self.batch, self.layer = torch.nn.BatchNorm2d(24), torch.nn.LayerNorm(24)
        self.linear = torch.nn.Linear(24, 301)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.batch(self.convolution(x)))
        x = F.max_pool2d(F.hardswish(self.depthwise(x)), 3, 2, 1)
        x = self.layer(x.flatten(2).transpose(1, 2))
        return F.cross_entropy((F.gelu(x) * x.softmax(1)).mean(1) @ self.linear.weight.t(), torch.arange(4))


def test_training_steps_equal_eager_to_the_last_bit() -> None:
    torch.manual_seed(0)
    model, images = Block(), torch.randn(4, 3, 41, 41)
    other = Block()
    other.load_state_dict(model.state_dict())
    compiled = stator.compile(other, options=OPTIONS, fullgraph=True)
    for module, call in ((model, model), (other, compiled)):
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(5):
            optimizer.zero_grad()
            call(images).backward()
            optimizer.step()
    pairs = zip(model.state_dict().items(), other.state_dict().values(), strict=True)
    assert [key for (key, value), found in pairs if not torch.equal(value, found)] == []


def filled(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[x > 0] = v
    return made


def with_rows(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made[:, x[0, :, 0] > 0] = v
    return made


CHOSEN_BY_DATA = {
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v[0, 0]),
    "written at a mask": lambda x, v: filled(x, v[0, 0]),
    "rows written at a mask": lambda x, v: with_rows(x.unflatten(0, (7, 129)), v[:1]),
    "index_fill": lambda x, v: x.index_fill(0, torch.arange(0, 900, 7).repeat(2), v[0, 0]),
    "prod of some": lambda x, v: (x / 3 + 1).prod(-2),
    "prod of all": lambda x, v: (x[:20, :3] / 3 + 1).prod(),
    "prod with one zero": lambda x, v: (x[:20, :3] * (torch.arange(60).view(20, 3) != 7)).prod(),
    "prod with zeros": lambda x, v: (x * (torch.arange(903).view(-1, 1) % 500 != 7)).prod(0, keepdim=True),
}


@pytest.mark.parametrize("name", CHOSEN_BY_DATA)
def test_gradients_that_depend_on_which_elements_count(name: str) -> None:
    """Eager's formulas choose elements, and add up or divide by those; kernels take all."""
    torch.manual_seed(0)
    x, v = torch.randn(903, 13, requires_grad=True), torch.randn(129, 13, requires_grad=True)
    results = []
    for function in (CHOSEN_BY_DATA[name], stator.compile(CHOSEN_BY_DATA[name], fullgraph=True)):
        made = function(x, v)
        torch.manual_seed(1)
        found = torch.autograd.grad(made, (x, v), torch.randn_like(made), allow_unused=True)
        results.append([made, *[gradient for gradient in found if gradient is not None]])
    for mine, theirs in zip(*results, strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("proj_size", [0, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_lstm_is_computed_by_the_library_that_eager_calls(bias: bool, proj_size: int) -> None:
    """oneDNN's layer, also where nothing is kept for a backward. Second derivatives are composed of others."""
    torch.manual_seed(0)
    module = torch.nn.LSTM(5, 7, num_layers=2, bias=bias, bidirectional=True, proj_size=proj_size)
    x = torch.randn(9, 4, 5, requires_grad=True)
    given = (x, *module.parameters())
    results = []
    for call in (module, stator.compile(module, options=OPTIONS, fullgraph=True)):
        with torch.no_grad():
            found = [call(x)[0]]
        made, (hidden, cells) = call(x)
        loss = made.square().sum() + hidden.sum() + cells.sum()
        first = torch.autograd.grad(loss, given, create_graph=True)
        second = torch.autograd.grad(sum(gradient.square().sum() for gradient in first), given)
        results.append(([*found, made, hidden, cells, *first], second))
    (actual, actual_second), (expected, expected_second) = results
    for mine, theirs in zip(actual_second, expected_second, strict=True):
        assert (mine - theirs).abs().max() <= 1e-6 * theirs.abs().max()
    assert [at for at, pair in enumerate(zip(actual, expected, strict=True)) if not same_bits(*pair)] == []


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_batch_statistics_are_eagers_without_the_option(memory_format: torch.memory_format) -> None:
    """Sums in double precision do not depend on the order; values may be one rounding apart. Rows of images in
    channels-last are added in float32 first: their means are nearer to the exact ones than eager's in that layout."""
    torch.manual_seed(0)
    norm, x = torch.nn.BatchNorm2d(40), torch.randn(2, 40, 57, 59) * 3 + 1
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(-1, 1)
    norm.momentum = 1.0  # running statistics are those of the batch
    other = copy.deepcopy(norm)
    expected = norm(x)
    compiled = stator.compile(other)
    actual = compiled(x.contiguous(memory_format=memory_format))
    if memory_format is torch.contiguous_format:
        assert torch.equal(other.running_mean, norm.running_mean)
    else:
        exact, eager = x.double().mean((0, 2, 3)), copy.deepcopy(norm)
        eager(x.contiguous(memory_format=memory_format))
        errors = [(one.running_mean - exact).abs() for one in (other, eager)]
        assert errors[0].max() <= min(errors[1].max(), 1.2e-7 * exact.abs().max())
    torch.testing.assert_close(other.running_var, norm.running_var, rtol=2.4e-7, atol=0)
    torch.testing.assert_close(actual, expected, rtol=1.2e-7, atol=1.2e-7)


class Rectified(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(40, 70), torch.nn.LayerNorm(70), torch.nn.Linear(70, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.softmax(self.norm(self.first(x).relu()), 1)).sum()


def test_training_across_a_jump_is_exact() -> None:
    """ReLU turns a difference in the last bit of its input into another gradient."""
    torch.manual_seed(0)
    model, x = Rectified(), torch.randn(33, 40)
    compiled = stator.compile(copy.deepcopy(model), options=OPTIONS)
    loss, expected = compiled(x), model(x)
    loss.backward()
    expected.backward()
    pairs = zip(compiled.parameters(), model.parameters(), strict=True)
    assert same_bits(loss, expected) and all(same_bits(mine.grad, theirs.grad) for mine, theirs in pairs)


@pytest.mark.parametrize("exact", [True, False])
def test_softmax_is_called_only_with_the_option(exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    stator.compile(Rectified(), options={"exact_rounding": exact})(torch.randn(33, 40))
    (program,) = tmp_path.rglob("50_program.txt")
    assert ("aten._softmax" in program.read_text()) is exact


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_of_models_equal_eager_to_the_last_bit(name: str) -> None:
    """With dropout, whose random numbers are eager's. One graph forward and one backward for each version of a model:
    the first call of some models writes what a later call reads."""
    options = {**OPTIONS, "exact_random": True}
    eager = Trainer(build_training(name, size="small"), lambda model: model)
    ours = Trainer(
        build_training(name, size="small"), lambda model: stator.compile(model, fullgraph=True, options=options)
    )
    counters.clear()
    for step in range(10):
        losses = []
        for trainer in (eager, ours):
            torch.manual_seed(step)
            losses.append(trainer())
        assert same_bits(losses[1], losses[0]), step
    pairs = zip(ours.case.model.parameters(), eager.case.model.parameters(), strict=True)
    assert all((a.grad is None) == (b.grad is None) and (a.grad is None or same_bits(a.grad, b.grad)) for a, b in pairs)
    state = zip(ours.case.model.state_dict().items(), eager.case.model.state_dict().values(), strict=True)
    assert [key for (key, value), expected in state if not same_bits(value, expected)] == []
    graphs = counters.counts["graphs"]
    assert 1 <= graphs <= 2 and not counters.counts["graph_breaks"]
    assert counters.counts["compiled:forward"] == counters.counts["compiled:backward"] == graphs
