"""Training loops as functions of `compiled`, which stands for stator.compile or for doing nothing.

Each returns what its steps returned, and the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler, swa_utils

Compiled = Callable[[Callable[..., Any]], Callable[..., Any]]
Loop = Callable[[Compiled], tuple[list[Any], nn.Module]]
LOOPS: dict[str, Loop] = {}
TURNS = 8


def loop(function: Loop) -> Loop:
    LOOPS[function.__name__] = function
    return function


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def batch(turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(turn)
    x, labels = (
        torch.randn(5, 6, generator=generator, device="cpu"),
        torch.randint(0, 3, (5,), generator=generator, device="cpu"),
    )
    return x.to(torch.get_default_device()), labels.to(torch.get_default_device())


def trained(step: Callable[..., Any], turns: int = TURNS) -> list[Any]:
    return [step(*batch(turn)) for turn in range(turns)]


def usual_step(net: nn.Module, *optimizers: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step


@loop
def plain(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return trained(compiled(usual_step(net, optimizer))), net


@loop
def gradients_kept_as_zeros(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return trained(compiled(step)), net


@loop
def clipped_by_norm(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nn.functional.cross_entropy(net(x), y).backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return trained(compiled(step)), net


@loop
def clipped_by_value(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return trained(compiled(step)), net


@loop
def accumulated(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    turns = [0]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y) / 2
        loss.backward()
        turns[0] += 1
        if turns[0] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return trained(compiled(step)), net


def _with_scheduler(make: Callable[[Any], Any], inside: bool) -> Loop:
    def run(compiled: Compiled) -> tuple[list[Any], nn.Module]:
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        scheduler = make(optimizer)
        plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if inside:
                scheduler.step(*((loss,) if plateau else ()))
            return loss.detach()

        run_step, losses = compiled(step), []
        for turn in range(14):
            losses.append(run_step(*batch(turn)))
            if not inside:
                scheduler.step(*(losses[-1:] if plateau else ()))
        return [*losses, optimizer.param_groups[0]["lr"]], net

    return run


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=30),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)], [3]
    ),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [1, 2, 4, 5, 7, 8, 9, 11, 12, 13]),
    "MultiplicativeLR": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95),
    "ConstantLR": lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.1, 4),
    "LinearLR": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=7),
    "ExponentialLR": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "PolynomialLR": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 9, 2.0),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 5), lr_scheduler.ExponentialLR(optimizer, 0.9)], optimizer=optimizer
    ),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=4),
    "CosineAnnealingWarmRestarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5, 2),
    "SWALR": lambda optimizer: swa_utils.SWALR(optimizer, 0.05, anneal_epochs=8),
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=1),
}
for _name, _make in SCHEDULERS.items():
    LOOPS[f"{_name} outside"] = _with_scheduler(_make, False)
    LOOPS[f"{_name} inside"] = _with_scheduler(_make, True)
BREAKS = {"ReduceLROnPlateau inside", "scaled_under_autocast"}  # graphs end where a program decides by data


@loop
def rate_in_a_tensor(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01))
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    step = usual_step(net, optimizer)
    run_step, losses = compiled(step), []
    for turn in range(TURNS):
        losses.append(run_step(*batch(turn)))
        scheduler.step()
    return losses, net


@loop
def updated_by_hand(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    parameters = list(net.parameters())
    velocities = [torch.zeros_like(parameter) for parameter in parameters]

    def step(x: torch.Tensor, y: torch.Tensor, rate: float) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
                velocity.mul_(0.9).add_(gradient)
                parameter -= rate * velocity
        return loss.detach()

    run_step = compiled(step)
    return [run_step(*batch(turn), 0.1 * 0.9**turn) for turn in range(TURNS)], net


@loop
def gradients_dropped_by_hand(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    parameters = list(net.parameters())

    def step(x: torch.Tensor, y: torch.Tensor, rate: float) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter.sub_(parameter.grad, alpha=rate)
                parameter.grad = None
        return loss.detach()

    run_step = compiled(step)
    return [run_step(*batch(turn), 0.1 * 0.9**turn) for turn in range(TURNS)], net


@loop
def step_with_closure(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run_step = compiled(optimizer.step)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            return loss

        return run_step(closure).detach()

    return trained(step), net


@loop
def average_by_hand(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net, average = model(), model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    turns = [0]

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        turns[0] += 1
        decay = min(0.999, (1 + turns[0]) / (10 + turns[0]))
        with torch.no_grad():
            for one, other in zip(average.parameters(), net.parameters(), strict=True):
                one.lerp_(other, 1 - decay)
        return loss.detach()

    return [*trained(compiled(step)), *average.parameters()], net


@loop
def accumulated_in_a_loop(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for part, labels in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = nn.functional.cross_entropy(net(part), labels) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return total

    return trained(compiled(step)), net


@loop
def groups_changed_outside(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    groups = [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[3].parameters(), "lr": 0.1}]  # type: ignore[index]
    optimizer = torch.optim.AdamW(groups)
    step = usual_step(net, optimizer)
    run_step, losses = compiled(step), []
    for turn in range(TURNS):
        losses.append(run_step(*batch(turn)))
        for at, group in enumerate(optimizer.param_groups):
            group["lr"] *= 0.9 - at * 0.1
            group["weight_decay"] = 0.01 * turn
    return losses, net


def _loaded(make: Callable[[Any], torch.optim.Optimizer]) -> Loop:
    def run(compiled: Compiled) -> tuple[list[Any], nn.Module]:
        net = model()
        optimizer = make(net.parameters())
        step = usual_step(net, optimizer)
        run_step, losses, saved = compiled(step), [], {}
        for turn in range(TURNS + 2):
            losses.append(run_step(*batch(turn)))
            if turn == 2:
                saved = copy.deepcopy({"net": net.state_dict(), "optimizer": optimizer.state_dict()})
            if turn in (4, 7):
                net.load_state_dict(saved["net"])
                optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        state = [value for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
        return [*losses, *state], net

    return run


LOOPS["loaded AdamW"] = _loaded(lambda owned: torch.optim.AdamW(owned, lr=0.01))
LOOPS["loaded SGD"] = _loaded(lambda owned: torch.optim.SGD(owned, lr=0.01, momentum=0.9))


@loop
def several_optimizers(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    one = torch.optim.AdamW(net[0].parameters(), lr=0.01)  # type: ignore[index]
    other = torch.optim.RMSprop(net[3].parameters(), lr=0.01)  # type: ignore[index]
    return trained(compiled(usual_step(net, one, other))), net


@loop
def frozen_for_a_while(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    step = usual_step(net, optimizer)
    run_step, losses = compiled(step), []
    for turn in range(TURNS):
        if turn % 2 == 0:
            net[0].requires_grad_(turn % 4 == 0)  # type: ignore[index]
        losses.append(run_step(*batch(turn)))
    return losses, net


@loop
def against_each_other(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    made, judge = model(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    making, judging = torch.optim.Adam(made.parameters(), lr=0.01), torch.optim.Adam(judge.parameters(), lr=0.01)
    judged = nn.functional.binary_cross_entropy_with_logits

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        fake, real = made(x), nn.functional.one_hot(y, 3).float()
        judging.zero_grad()
        loss = judged(judge(real), torch.ones(5, 1)) + judged(judge(fake.detach()), torch.zeros(5, 1))
        loss.backward()
        judging.step()
        making.zero_grad()
        judged(judge(fake), torch.ones(5, 1)).backward()
        making.step()
        return loss.detach()

    return [*trained(compiled(step)), *judge.parameters()], made


@loop
def scaled_under_autocast(compiled: Compiled) -> tuple[list[Any], nn.Module]:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    device = torch.get_default_device().type
    scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run_step, losses = compiled(step), []
    for turn in range(TURNS):
        x, y = batch(turn)
        losses.append(run_step(x * (float("inf") if turn == 4 else 1), y))
    return [*losses, scaler.get_scale()], net


def _averaged(**options: Any) -> Loop:
    def run(compiled: Compiled) -> tuple[list[Any], nn.Module]:
        net = nn.Sequential(model(), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        average = swa_utils.AveragedModel(net, **options)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(net)
            return loss.detach()

        return [*trained(compiled(step)), *average.parameters(), *average.buffers()], net

    return run


AVERAGES: dict[str, dict[str, Any]] = {
    "equally": {},
    "exponentially, all at once": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9)},
    "with buffers": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.9), "use_buffers": True},
    "by a function of the user's": {"avg_fn": lambda average, current, count: 0.9 * average + 0.1 * current},
}
for _name, _options in AVERAGES.items():
    LOOPS[f"averaged {_name}"] = _averaged(**_options)
    BREAKS.add(f"averaged {_name}")
