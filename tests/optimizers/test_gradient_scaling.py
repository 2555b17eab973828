"""GradScaler under one stator.compile: the graph ends where the scaler decides whether to step. Parameters, state and
scale equal eager's, also in skipped steps, and after some steps nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from optimizer_cases import as_it_is, parameters
from torch import nn

import stator
from stator.base import counters

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about its own deprecations

Compiled = Callable[[Callable[..., Any]], Callable[..., Any]]
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
TURNS = 9


def with_backend(backend: str) -> Compiled:
    return lambda function: stator.compile(function, backend=backend)


def assert_same(expected: Any, found: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance / 10, equal_nan=True)


def train(
    compiled: Compiled, make: Make, infinite: tuple[int, ...], unscale: bool = False, two: bool = False, on: bool = True
) -> tuple[list[Any], list[int]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    owned = list(net.parameters())
    optimizers = [make(owned[:3]), make(owned[3:])] if two else [make(owned)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3, enabled=on)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            if unscale:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(owned, 1.0)
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return loss.detach()

    run, seen, compiled_by_then = compiled(step), [], []
    for turn in range(TURNS):
        generator = torch.Generator().manual_seed(turn)
        x = torch.randn(5, 6, generator=generator) * (float("inf") if turn in infinite else 1)
        seen += [
            run(x, torch.randint(0, 3, (5,), generator=generator)),
            scaler.get_scale(),
            scaler._get_growth_tracker(),
        ]
        compiled_by_then.append(counters.counts["dynamo.compiled_frames"])
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    return [seen, owned, states], compiled_by_then


OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda owned: torch.optim.SGD(owned, lr=0.1),
    "momentum": lambda owned: torch.optim.SGD(owned, lr=0.1, momentum=0.9),
    "AdamW": lambda owned: torch.optim.AdamW(owned, lr=0.01),
    "fused": lambda owned: torch.optim.AdamW(owned, lr=0.01, fused=True),
}


@pytest.mark.each_pair
@pytest.mark.parametrize("infinite", [(), (4,), (0, 1, 6)], ids=str)
@pytest.mark.parametrize("form", ["plain", "unscaled", "two optimizers", "off"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_is_eagers(name: str, form: str, infinite: tuple[int, ...]) -> None:
    options = {"unscale": form == "unscaled", "two": form == "two optimizers", "on": form != "off"}
    infinite = () if form == "off" else infinite
    expected, _ = train(as_it_is, OPTIMIZERS[name], infinite, **options)
    counters.clear()
    found, compiled_by_then = train(with_backend("aot_eager"), OPTIMIZERS[name], infinite, **options)
    assert_same(expected, found)
    assert compiled_by_then[7:] == compiled_by_then[7:8] * (TURNS - 7)
    assert form != "off" or compiled_by_then[-1] == 1


@pytest.mark.parametrize("name", ["momentum", "AdamW"])
def test_training_in_kernels_is_eagers(name: str) -> None:
    expected, _ = train(as_it_is, OPTIMIZERS[name], (1, 5), unscale=True)
    found, _ = train(with_backend("inductor"), OPTIMIZERS[name], (1, 5), unscale=True)
    assert_same(expected, found)


def test_the_state_is_made_by_the_first_step_that_is_not_skipped() -> None:
    owned = parameters()
    optimizer = torch.optim.Adam(owned, lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    @stator.compile(backend="aot_eager")
    def step(factor: torch.Tensor) -> None:
        scaler.scale((owned[0] * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    for factor, states in ((float("inf"), 0), (float("nan"), 0), (1.0, 1), (float("inf"), 1)):
        step(torch.tensor(factor))
        assert len(optimizer.state) == states
    assert optimizer.state[owned[0]]["step"] == 1


# ---- steps that change more than tensors ----


class Counted(torch.optim.SGD):
    taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        return super().step(closure)


class Sign(torch.optim.Optimizer):
    """A user's optimizer, whose state is a tensor that is written in place."""

    def __init__(self, owned: list[nn.Parameter]) -> None:
        super().__init__(owned, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for one in self.param_groups[0]["params"]:
            state = self.state[one]
            if not state:
                state["average"] = torch.zeros_like(one)
            one.add_((state["average"] * 0.9 + one.grad * 0.1).sign(), alpha=-0.1)
            state["average"].lerp_(one.grad, 0.01)


class Returning(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        return 3.0


def _hooked(owned: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(owned, lr=0.01)
    optimizer.register_step_post_hook(lambda self, *_: self.state.setdefault("seen", []).append(1))
    return optimizer


USERS: dict[str, Make] = {
    "counted": lambda owned: Counted(owned, lr=0.01),
    "sign": Sign,
    "returning": lambda owned: Returning(owned, lr=0.01),
    "hooked": _hooked,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", USERS)
def test_other_effects_of_a_step_are_eagers(name: str, backend: str) -> None:
    def run(compiled: Compiled) -> list[Any]:
        owned = [nn.Parameter(torch.ones(3))]
        optimizer = USERS[name](owned)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(x: torch.Tensor) -> Any:
            scaler.scale((owned[0] * x).sum()).backward()
            result = scaler.step(optimizer)
            scaler.update()
            gradient = owned[0].grad.clone()
            optimizer.zero_grad()
            return result, gradient

        torch.manual_seed(3)
        run_step = compiled(step)
        results = [run_step(torch.full((3,), value)) for value in (1.0, float("inf"), 2.0, float("nan"), 3.0, 4.0)]
        state = [dict(optimizer.state[owned[0]]), optimizer.state.get("seen")]
        return [results, owned, state, getattr(optimizer, "taken", 0), scaler.get_scale(), torch.randn(1)]

    assert repr(run(with_backend(backend))) == repr(run(as_it_is))


def test_a_loaded_scaler_goes_on_from_there() -> None:
    def run(compiled: Compiled) -> list[Any]:
        owned = [nn.Parameter(torch.ones(3))]
        optimizer = torch.optim.Adam(owned, lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)

        def step(x: torch.Tensor) -> None:
            scaler.scale((owned[0] * x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        run_step, seen = compiled(step), []
        for turn in range(8):
            run_step(torch.full((3,), float("inf") if turn == 3 else 1.0))
            seen.append(scaler.state_dict())
            if turn == 4:
                scaler.load_state_dict({**seen[-1], "scale": 64.0, "growth_interval": 1})
        return [seen, owned]

    assert_same(run(as_it_is), run(with_backend("aot_eager")))


def test_a_second_step_before_the_update_raises_as_in_eager() -> None:
    owned = [nn.Parameter(torch.ones(3))]
    optimizer = torch.optim.SGD(owned, lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    @stator.compile(backend="eager")
    def step() -> None:
        scaler.scale(owned[0].sum()).backward()
        scaler.step(optimizer)
        scaler.step(optimizer)

    with pytest.raises(RuntimeError, match="already been called since the last update"):
        step()
    torch.testing.assert_close(owned[0].detach(), torch.full((3,), 0.9))
