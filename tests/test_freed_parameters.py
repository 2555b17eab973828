"""stator.freeze(free_parameters=True) gives the memory of parameters back, computes on, and refuses all other uses."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import FUSED, assert_same
from torch import nn

import stator
from stator.base.errors import StatorError, UsageError
from stator.inductor.lower import constant_weights
from stator.runtime import packed_products


class Tied(nn.Module):
    """Two products, of which the last shares the table's parameter, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 128)
        self.first = nn.Linear(128, 128)
        self.last = nn.Linear(128, 40, bias=False)
        self.last.weight = self.table.weight
        self.register_buffer("shift", torch.randn(40))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.table(tokens)))) + self.shift.sin()


class Counting(nn.Module):
    """Writes to a buffer, and returns a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.randn(8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls.add_(1)
        return self.first(x) * self.calls * self.scale, self.scale


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        stator.graph_break()
        return self.first(x)


def tokens(batch: int = 4) -> torch.Tensor:
    return torch.randint(0, 40, (batch, 16))


def freed(model: nn.Module, x: torch.Tensor, **options: Any) -> nn.Module:
    frozen = stator.freeze(model, free_parameters=True, **options)
    frozen(x)
    return frozen


@pytest.mark.fixed_sizes
def test_results() -> None:
    model = Tied().eval()
    eager = copy.deepcopy(model)
    frozen = stator.freeze(model, free_parameters=True)
    for _ in range(3):
        x = tokens()
        with torch.no_grad():
            assert_same(frozen(x), eager(x), FUSED)


def test_other_sizes() -> None:
    model = Tied().eval()
    eager = copy.deepcopy(model)
    frozen = stator.freeze(model, free_parameters=True, dynamic=True)
    for batch in (4, 7, 2):
        x = tokens(batch)
        with torch.no_grad():
            assert_same(frozen(x), eager(x), FUSED)


@pytest.mark.parametrize("library", ["onednn", "mkl"])
def test_memory_is_given_back(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if library not in packed_products.implementations(torch.float32, rows_are_known=True):
        pytest.skip(f"this build has no {library}")
    monkeypatch.setattr(constant_weights, "quickest_product", lambda *_: library)
    values = np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    memory = weakref.ref(values)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU()).eval()
    model[0].weight = nn.Parameter(torch.from_numpy(values))
    del values
    x = torch.randn(32, 128)
    with torch.no_grad():
        expected = model(x)
    frozen = freed(model, x)
    gc.collect()
    assert memory() is None
    assert_same(frozen(x), expected, FUSED)


def test_memory_that_others_share_lives_on() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    state, values = model.state_dict(), model[0].weight.detach().clone()
    freed(model, torch.randn(4, 8))
    assert torch.equal(state["0.weight"], values)


@pytest.mark.fixed_sizes
def test_inputs_of_the_graph_are_kept() -> None:
    model = Counting().eval()
    eager = copy.deepcopy(model)
    frozen = stator.freeze(model, free_parameters=True)
    for _ in range(3):
        x = torch.randn(4, 8)
        with torch.no_grad():
            assert_same(frozen(x), eager(x), FUSED)
    assert torch.equal(model.calls, eager.calls)
    assert torch.equal(model.scale, eager.scale)


USES: dict[str, Callable[[Tied, nn.Module], object]] = {
    "eager call": lambda model, _: model(tokens()),
    "other size": lambda _, frozen: frozen(tokens(9)),
    "state": lambda _, frozen: frozen.state_dict(),
    "loading": lambda _, frozen: frozen.load_state_dict(Tied().state_dict()),
    "copy": lambda _, frozen: copy.deepcopy(frozen),
    "pickle": lambda _, frozen: pickle.dumps(frozen),
    "cast": lambda _, frozen: frozen.double(),
    "optimizer": lambda model, _: torch.optim.SGD(model.parameters(), lr=0.1),
    "new data": lambda model, _: setattr(model.first.weight, "data", torch.zeros(128, 128)),
    "buffer": lambda model, _: model.shift + 1,
    "after a reset": lambda _, frozen: (stator.reset(), frozen(tokens())),
}


@pytest.mark.fixed_sizes
@pytest.mark.parametrize("use", USES)
def test_other_uses_are_refused(use: str) -> None:
    model = Tied().eval()
    x = tokens()
    frozen = freed(model, x)
    before = frozen(x)
    with pytest.raises(UsageError, match=r"freed by stator\.freeze"):
        USES[use](model, frozen)
    if use != "after a reset":
        assert torch.equal(frozen(x), before)


def test_another_parameter_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(8, 8)).eval()
    x = torch.randn(4, 8)
    frozen = freed(model, x)
    model[0].weight, model[0].bias = nn.Parameter(torch.ones(8, 8)), nn.Parameter(torch.zeros(8))
    with torch.no_grad():
        assert_same(frozen(x), model(x), FUSED)


def test_a_module_of_two_graphs_keeps_its_parameters() -> None:
    model = Broken().eval()
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = model(x)
    with pytest.raises(StatorError):
        stator.freeze(model, free_parameters=True)(x)
    with torch.no_grad():
        assert torch.equal(model(x), expected)


def test_compile_keeps_parameters() -> None:
    with pytest.raises(UsageError, match=r"stator\.freeze"):
        stator.compile(nn.Linear(8, 8), options={"freezing": True, "free_parameters": True})
