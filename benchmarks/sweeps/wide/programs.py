"""Networks written by hand whose layers are no library's: splines, spectra, flows, experts, rays."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .family import Built, family


@family("plain")
def kolmogorov_arnold() -> Built:
    """B-splines of third degree on every edge, by the recursion of Cox and de Boor."""

    class Splines(nn.Module):
        def __init__(self, inputs: int, outputs: int, cells: int = 5, degree: int = 3) -> None:
            super().__init__()
            knots = torch.arange(-degree, cells + degree + 1) * 2 / cells - 1
            self.register_buffer("knots", knots.expand(inputs, -1).contiguous())
            self.degree = degree
            self.base = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))
            self.weight = nn.Parameter(0.1 * torch.randn(outputs, inputs * (cells + degree)))

        def forward(self, x: Tensor) -> Tensor:
            points, knots = x[..., None], self.knots
            bases = ((points >= knots[:, :-1]) & (points < knots[:, 1:])).to(x.dtype)
            for k in range(1, self.degree + 1):
                left = (points - knots[:, : -(k + 1)]) / (knots[:, k:-1] - knots[:, : -(k + 1)])
                right = (knots[:, k + 1 :] - points) / (knots[:, k + 1 :] - knots[:, 1:-k])
                bases = left * bases[..., :-1] + right * bases[..., 1:]
            return F.linear(F.silu(x), self.base) + F.linear(bases.flatten(1), self.weight)

    return Built(nn.Sequential(Splines(8, 32), Splines(32, 4)), lambda: {"input": torch.rand(256, 8) * 2 - 1})


@family("plain")
def fourier_operator() -> Built:
    class Spectral(nn.Module):
        def __init__(self, width: int, modes: int) -> None:
            super().__init__()
            self.modes = modes
            self.weights = nn.ParameterList(
                torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width for _ in range(2)
            )

        def forward(self, x: Tensor) -> Tensor:
            spectrum, m = torch.fft.rfft2(x), self.modes
            output = torch.zeros_like(spectrum)
            output[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weights[0])
            output[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m:, :m], self.weights[1])
            return torch.fft.irfft2(output, s=x.shape[-2:])

    class Operator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.project = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 1, 1)
            self.spectral = nn.ModuleList(Spectral(16, 8) for _ in range(3))
            self.pointwise = nn.ModuleList(nn.Conv2d(16, 16, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = self.lift(x)
            for spectral, pointwise in zip(self.spectral, self.pointwise, strict=True):
                x = F.gelu(spectral(x) + pointwise(x))
            return self.project(x)

    return Built(Operator(), lambda: {"x": torch.randn(4, 3, 32, 32)})


@family("plain")
def variational_autoencoder() -> Built:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(
                nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()
            )
            self.moments, self.start = nn.Linear(32 * 49, 32), nn.Linear(16, 32 * 49)
            self.decoder = nn.Sequential(
                nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)
            )

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            mean, logarithm = self.moments(self.encoder(x)).chunk(2, -1)
            code = mean + torch.randn_like(mean) * (0.5 * logarithm).exp()
            made = self.decoder(F.relu(self.start(code)).unflatten(1, (32, 7, 7)))
            divergence = -0.5 * (1 + logarithm - mean**2 - logarithm.exp()).sum()
            return F.binary_cross_entropy_with_logits(made, x, reduction="sum") + divergence, made.sigmoid()

    return Built(Autoencoder(), lambda: {"x": torch.rand(16, 1, 28, 28)})


@family("plain")
def normalizing_flow() -> Built:
    class Coupling(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.network = nn.Sequential(nn.Linear(width // 2, 64), nn.ReLU(), nn.Linear(64, width))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            kept, changed = x.chunk(2, -1)
            scale, shift = self.network(kept).chunk(2, -1)
            scale = scale.tanh()
            return torch.cat([changed * scale.exp() + shift, kept], -1), scale.sum(-1)

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.couplings = nn.ModuleList(Coupling(8) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            volume = x.new_zeros(len(x))
            for coupling in self.couplings:
                x, change = coupling(x)
                volume = volume + change
            normal = torch.distributions.Normal(0.0, 1.0)
            return -(normal.log_prob(x).sum(-1) + volume).mean()

    return Built(Flow(), lambda: {"x": torch.randn(512, 8)})


@family("plain")
def siamese_triplets() -> Built:
    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(
                nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1),
                nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 32),
            )  # fmt: skip
            self.loss = nn.TripletMarginLoss(0.5)

        def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
            return self.loss(*(F.normalize(self.tower(image)) for image in (anchor, positive, negative)))

    names = ("anchor", "positive", "negative")
    return Built(Siamese(), lambda: {name: torch.randn(8, 3, 32, 32) for name in names})


@family("plain")
def mlp_mixer() -> Built:
    class Block(nn.Module):
        def __init__(self, tokens: int, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
            self.along = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.across(self.norms[0](x).mT).mT
            return x + self.along(self.norms[1](x))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.head = nn.Conv2d(3, 64, 8, 8), nn.Linear(64, 10)
            self.blocks = nn.Sequential(*(Block(64, 64) for _ in range(4)))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.blocks(self.patches(x).flatten(2).mT).mean(1))

    return Built(Mixer(), lambda: {"x": torch.randn(4, 3, 64, 64)})


@family("plain")
def mixture_of_experts() -> Built:
    """Each token goes to its two best experts; the rows of an expert are found by `nonzero`, as many write it."""

    class Experts(nn.Module):
        def __init__(self, width: int = 64, count: int = 4) -> None:
            super().__init__()
            self.gate = nn.Linear(width, count)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, width)) for _ in range(count)
            )

        def forward(self, x: Tensor) -> Tensor:
            weights, chosen = self.gate(x).softmax(-1).topk(2)
            weights, output = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == index)
                output.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
            return output

    return Built(Experts(), lambda: {"x": torch.randn(256, 64)})


@family("plain")
def radiance_field() -> Built:
    class Radiance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(39, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
            depths = torch.linspace(0.5, 4.0, 32)
            points = origins[:, None] + directions[:, None] * depths[:, None]
            waves = [wave(2.0**k * points) for k in range(6) for wave in (torch.sin, torch.cos)]
            colour, density = self.layers(torch.cat([points, *waves], -1)).split([3, 1], -1)
            opacity = 1 - torch.exp(-F.relu(density[..., 0]) * (depths[1] - depths[0]))
            through = torch.cumprod(torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1), -1)[:, :-1]
            weights = opacity * through
            return (weights[..., None] * colour.sigmoid()).sum(1), (weights * depths).sum(1)

    names = ("origins", "directions")
    return Built(Radiance(), lambda: {name: torch.randn(128, 3) for name in names})


@family("plain")
def state_space() -> Built:
    """A selective state space whose recurrence is a loop over time."""

    class Selective(nn.Module):
        def __init__(self, width: int = 32, states: int = 8) -> None:
            super().__init__()
            self.states = states
            self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
            self.parameters_of = nn.Linear(width, width + 2 * states)
            self.decay = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).expand(width, states).clone())

        def forward(self, x: Tensor) -> Tensor:
            values, gate = self.enter(x).chunk(2, -1)
            steps, b, c = self.parameters_of(values).split([values.size(-1), self.states, self.states], -1)
            steps = F.softplus(steps)
            keep = torch.exp(-steps[..., None] * self.decay.exp())
            write = (steps * values)[..., None] * b[:, :, None]
            state, outputs = torch.zeros_like(write[:, 0]), []
            for time in range(x.size(1)):
                state = keep[:, time] * state + write[:, time]
                outputs.append((state * c[:, time, None]).sum(-1))
            return self.leave(torch.stack(outputs, 1) * F.silu(gate))

    return Built(Selective(), lambda: {"x": torch.randn(4, 16, 32)})


@family("plain")
def detection_losses() -> Built:
    """Anchors, boxes and a focal loss, as detectors of one stage have them."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 4, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
            self.boxes, self.scores = nn.Conv2d(32, 4, 1), nn.Conv2d(32, 5, 1)

        def forward(self, image: Tensor, target: Tensor, labels: Tensor) -> dict[str, Any]:
            features = self.body(image)
            boxes, scores = self.boxes(features).flatten(2).mT, self.scores(features).flatten(2).mT
            corners = torch.cat([boxes[..., :2], boxes[..., :2] + boxes[..., 2:].exp()], -1)
            low = torch.maximum(corners[:, :, None, :2], target[:, None, :, :2])
            high = torch.minimum(corners[:, :, None, 2:], target[:, None, :, 2:])
            shared = (high - low).clamp(min=0).prod(-1)
            areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (corners, target)]
            overlap = shared / (areas[0][:, :, None] + areas[1][:, None] - shared)
            best, which = overlap.max(-1)
            wanted = F.one_hot(labels.gather(1, which), 5).float() * (best > 0.1)[..., None]
            probability = scores.sigmoid()
            right = probability * wanted + (1 - probability) * (1 - wanted)
            entropy = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
            return {"focal": ((1 - right) ** 2 * entropy).sum(), "overlap": (1 - best).mean()}

    def make() -> dict[str, Any]:
        low = torch.randn(2, 6, 2)
        target = torch.cat([low, low + 0.5 + torch.rand(2, 6, 2)], -1)
        return {"image": torch.randn(2, 3, 64, 64), "target": target, "labels": torch.randint(0, 5, (2, 6))}

    return Built(Detector(), make)
