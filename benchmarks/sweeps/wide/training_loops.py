"""Training steps written by hand whose unit is a loop: adversarial networks and reinforcement learning.

Adam divides by gradients' magnitudes plus `eps`: 1e-5 keeps the rounding of gradients near zero out of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .family import TRAINING, Inputs, Loop, family

_STATES, _ACTIONS, _BATCH = 8, 4, 64
Optimizers = list[torch.optim.Optimizer]


def _adam(*groups: str) -> Callable[[SimpleNamespace], Optimizers]:
    """One optimizer for each group of networks, whose names are joined by "+"."""

    def make(networks: SimpleNamespace) -> Optimizers:
        owned = [[getattr(networks, name) for name in group.split("+")] for group in groups]
        return [
            torch.optim.Adam([p for network in each for p in network.parameters()], lr=3e-4, eps=1e-5) for each in owned
        ]

    return make


def _update(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# ---- adversarial networks ----


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(32, 64, 4), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 4), nn.Tanh(),
    )  # fmt: skip


def _critic(*, normalized: bool) -> nn.Module:
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d if normalized else lambda width: nn.Identity()
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1), norm(64), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 8), nn.Flatten(0),
    )  # fmt: skip


def _images() -> dict[str, Any]:
    return {"real": torch.rand(8, 3, 32, 32), "noise": torch.randn(8, 32, 1, 1)}


@family("plain", TRAINING)
def dcgan() -> Loop:
    def step(nets: SimpleNamespace, optimizers: Optimizers, real: Tensor, noise: Tensor) -> list[Tensor]:
        fake = nets.generator(noise)
        on_real, on_fake = nets.critic(real), nets.critic(fake.detach())
        loss = F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real))
        first = _update(optimizers[0], loss + F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake)))
        judged = nets.critic(fake)
        return [first, _update(optimizers[1], F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)))]

    networks = {"generator": _generator(), "critic": _critic(normalized=True)}
    return Loop(networks, _adam("critic", "generator"), step, _images)


@family("plain", TRAINING)
def wasserstein_gan() -> Loop:
    """With a penalty on the gradient of the critic, which is differentiated again."""

    def step(nets: SimpleNamespace, optimizers: Optimizers, real: Tensor, noise: Tensor) -> list[Tensor]:
        with torch.no_grad():
            fake = nets.generator(noise)
        mixed = torch.lerp(real, fake, torch.rand(len(real), 1, 1, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(nets.critic(mixed).sum(), mixed, create_graph=True)
        penalty = ((slope.flatten(1).norm(dim=1) - 1) ** 2).mean()
        first = _update(optimizers[0], nets.critic(fake).mean() - nets.critic(real).mean() + 10 * penalty)
        return [first, _update(optimizers[1], -nets.critic(nets.generator(noise)).mean())]

    networks = {"generator": _generator(), "critic": _critic(normalized=False)}
    return Loop(networks, _adam("critic", "generator"), step, _images)


@family("plain", TRAINING)
def cycle_gan() -> Loop:
    def translator() -> nn.Module:
        return nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 24, 3), nn.InstanceNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1), nn.InstanceNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 3, 3, padding=1), nn.Tanh(),
        )  # fmt: skip

    def step(nets: SimpleNamespace, optimizers: Optimizers, a: Tensor, b: Tensor) -> list[Tensor]:
        fake_b, fake_a = nets.forth(a), nets.back(b)
        cycle = F.l1_loss(nets.back(fake_b), a) + F.l1_loss(nets.forth(fake_a), b)
        fooled = ((nets.judge_b(fake_b) - 1) ** 2).mean() + ((nets.judge_a(fake_a) - 1) ** 2).mean()
        first = _update(optimizers[0], fooled + 10 * cycle)
        judged = [(nets.judge_a, a, fake_a), (nets.judge_b, b, fake_b)]
        losses = [((judge(x) - 1) ** 2).mean() + (judge(y.detach()) ** 2).mean() for judge, x, y in judged]
        return [first, _update(optimizers[1], losses[0] + losses[1])]

    networks = {"forth": translator(), "back": translator()}
    networks |= {"judge_a": _critic(normalized=False), "judge_b": _critic(normalized=False)}
    make: Inputs = lambda: {name: torch.rand(2, 3, 32, 32) for name in "ab"}  # noqa: E731
    return Loop(networks, _adam("forth+back", "judge_a+judge_b"), step, make)


# ---- reinforcement learning ----


def _layers(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def _rollout() -> dict[str, Any]:
    return {
        "states": torch.randn(_BATCH, _STATES),
        "actions": torch.randint(0, _ACTIONS, (_BATCH,)),
        "rewards": torch.randn(_BATCH),
        "following": torch.randn(_BATCH, _STATES),
        "ended": (torch.rand(_BATCH) < 0.1).float(),
    }


def _policy_loss(
    nets: SimpleNamespace, states: Tensor, actions: Tensor, old: Tensor, gain: Tensor, returns: Tensor
) -> Tensor:
    choice = torch.distributions.Categorical(logits=nets.actor(states))
    ratio = (choice.log_prob(actions) - old).exp()
    policy = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
    value = 0.5 * (nets.critic(states)[:, 0] - returns).pow(2).mean()
    return policy + 0.5 * value - 0.01 * choice.entropy().mean()


def _advantages(values: Tensor, rewards: Tensor, ended: Tensor) -> Tensor:
    """Generalised advantage estimation, backwards in time."""
    gains, gain, after = [], values.new_zeros(()), values.new_zeros(())
    for t in reversed(range(len(rewards))):
        error = rewards[t] + 0.99 * after * (1 - ended[t]) - values[t]
        gain = error + 0.99 * 0.95 * (1 - ended[t]) * gain
        after = values[t]
        gains.append(gain)
    return torch.stack(gains[::-1])


def _ppo(*, whole: bool) -> Loop:
    def step(
        nets: SimpleNamespace, optimizers: Optimizers, states: Tensor, actions: Tensor, rewards: Tensor,
        following: Tensor, ended: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        with torch.no_grad():
            values = nets.critic(states)[:, 0]
            gains = _advantages(values, rewards, ended)
            old = torch.distributions.Categorical(logits=nets.actor(states)).log_prob(actions)
        returns, gains = gains + values, (gains - gains.mean()) / (gains.std() + 1e-8)
        losses = []
        for _ in range(2):
            for part in range(0, _BATCH, 16):
                rows = slice(part, part + 16)
                loss = _policy_loss(nets, states[rows], actions[rows], old[rows], gains[rows], returns[rows])
                optimizers[0].zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_([p for n in (nets.actor, nets.critic) for p in n.parameters()], 0.5)
                optimizers[0].step()
                losses.append(loss.detach())
        return losses

    networks = {"actor": _layers(_STATES, _ACTIONS), "critic": _layers(_STATES, 1)}
    return Loop(networks, _adam("actor+critic"), step, _rollout, whole)


@family("plain", TRAINING)
def ppo() -> Loop:
    return _ppo(whole=False)


@family("plain", TRAINING)
def ppo_compiled_whole() -> Loop:
    return _ppo(whole=True)


def _dqn(*, whole: bool) -> Loop:
    def step(
        nets: SimpleNamespace, optimizers: Optimizers, states: Tensor, actions: Tensor, rewards: Tensor,
        following: Tensor, ended: Tensor,
    ) -> Tensor:  # fmt: skip
        with torch.no_grad():
            best = nets.online(following).argmax(1, keepdim=True)
            target = rewards + 0.99 * (1 - ended) * nets.target(following).gather(1, best)[:, 0]
        chosen = nets.online(states).gather(1, actions[:, None])[:, 0]
        loss = _update(optimizers[0], F.smooth_l1_loss(chosen, target))
        with torch.no_grad():
            for slow, fast in zip(nets.target.parameters(), nets.online.parameters(), strict=True):
                slow.lerp_(fast, 0.005)
        return loss

    networks = {"online": _layers(_STATES, _ACTIONS), "target": _layers(_STATES, _ACTIONS)}
    return Loop(networks, _adam("online"), step, _rollout, whole)


@family("plain", TRAINING)
def dqn() -> Loop:
    return _dqn(whole=False)


@family("plain", TRAINING)
def dqn_compiled_whole() -> Loop:
    return _dqn(whole=True)


@family("plain", TRAINING)
def a2c() -> Loop:
    class ActorCritic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(_STATES, 64), nn.ReLU())
            self.policy, self.value = nn.Linear(64, _ACTIONS), nn.Linear(64, 1)

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            features = self.body(states)
            return self.policy(features), self.value(features)[:, 0]

    def step(
        nets: SimpleNamespace, optimizers: Optimizers, states: Tensor, actions: Tensor, rewards: Tensor,
        following: Tensor, ended: Tensor,
    ) -> Tensor:  # fmt: skip
        logits, values = nets.both(states)
        with torch.no_grad():
            returns = rewards + 0.99 * (1 - ended) * nets.both(following)[1]
        choice = torch.distributions.Categorical(logits=logits)
        policy = -(choice.log_prob(actions) * (returns - values).detach()).mean()
        loss = policy + 0.5 * F.mse_loss(values, returns) - 0.01 * choice.entropy().mean()
        return _update(optimizers[0], loss)

    return Loop({"both": ActorCritic()}, _adam("both"), step, _rollout)


@family("plain", TRAINING)
def soft_actor_critic() -> Loop:
    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers(_STATES, 4)

        def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
            mean, deviation = self.layers(states).chunk(2, -1)
            normal = torch.distributions.Normal(mean, deviation.clamp(-5, 2).exp())
            raw = normal.rsample()
            action = raw.tanh()
            return action, (normal.log_prob(raw) - torch.log(1 - action**2 + 1e-6)).sum(-1, keepdim=True)

    class Critics(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = _layers(_STATES + 2, 1), _layers(_STATES + 2, 1)

        def forward(self, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            both = torch.cat([states, actions], -1)
            return self.first(both), self.second(both)

    def step(
        nets: SimpleNamespace, optimizers: Optimizers, states: Tensor, actions: Tensor, rewards: Tensor,
        following: Tensor, ended: Tensor,
    ) -> list[Tensor]:  # fmt: skip
        with torch.no_grad():
            next_action, logarithm = nets.actor(following)
            value = torch.min(*nets.targets(following, next_action)) - 0.2 * logarithm
            target = rewards[:, None] + 0.99 * (1 - ended[:, None]) * value
        first, second = nets.critics(states, actions)
        judged = _update(optimizers[0], F.mse_loss(first, target) + F.mse_loss(second, target))
        action, logarithm = nets.actor(states)
        acted = _update(optimizers[1], (0.2 * logarithm - torch.min(*nets.critics(states, action))).mean())
        with torch.no_grad():
            for slow, fast in zip(nets.targets.parameters(), nets.critics.parameters(), strict=True):
                slow.mul_(0.995).add_(fast, alpha=0.005)
        return [judged, acted]

    networks = {"actor": Actor(), "critics": Critics(), "targets": Critics()}
    make: Inputs = lambda: {**_rollout(), "actions": torch.randn(_BATCH, 2).tanh()}  # noqa: E731
    return Loop(networks, _adam("critics", "actor"), step, make)


@family("plain", TRAINING)
def policy_gradient_episode() -> Loop:
    """Acts for twenty steps in a simulated world, one state at a time, then learns from the episode."""

    def step(nets: SimpleNamespace, optimizers: Optimizers, state: Tensor, world: Tensor) -> list[Tensor]:
        logarithms, rewards = [], []
        for _ in range(20):
            choice = torch.distributions.Categorical(logits=nets.actor(state))
            action = choice.sample()
            logarithms.append(choice.log_prob(action))
            state = torch.tanh(state @ world[int(action)])
            rewards.append(-state.pow(2).sum())
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        return [_update(optimizers[0], -(torch.stack(logarithms) * returns).sum()), returns]

    networks = {"actor": _layers(_STATES, _ACTIONS)}
    make: Inputs = lambda: {  # noqa: E731
        "state": torch.randn(_STATES),
        "world": torch.randn(_ACTIONS, _STATES, _STATES) / 2,
    }
    return Loop(networks, _adam("actor"), step, make)
