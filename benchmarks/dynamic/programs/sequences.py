"""Recurrent networks and encoders of sound over varying lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..program import Inputs, program

# batch, length
_SIZES = ((8, 32), (8, 50), (8, 17), (4, 100), (8, 64))
_FEW = ((3, 8), (3, 5), (2, 11), (4, 9))


def _sequences(batch: int, length: int) -> Inputs:
    return {"x": torch.randn(batch, length, 32)}


class Tagger(nn.Module):
    """Labels of all steps, and of the whole sequence by its last step."""

    def __init__(self, network: nn.Module, width: int) -> None:
        super().__init__()
        self.network, self.steps, self.whole = network, nn.Linear(width, 5), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.network(x)
        return torch.cat([self.steps(seen), self.whole(seen[:, -1:])], 1).log_softmax(-1)


@program(inputs=_sequences, sizes=_SIZES, few=_FEW)
def lstm() -> nn.Module:
    return Tagger(nn.LSTM(32, 64, num_layers=2, batch_first=True), 64)


@program(inputs=_sequences, sizes=_SIZES, few=_FEW)
def bidirectional_gru() -> nn.Module:
    return Tagger(nn.GRU(32, 32, batch_first=True, bidirectional=True), 64)


class RecurrentCell(nn.Module):
    """A recurrent network written by hand: a loop over the steps of a sequence."""

    def __init__(self, inside: int = 32, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.entry, self.memory, self.head = nn.Linear(inside, width), nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], self.width)
        for step in range(x.shape[1]):
            state = torch.tanh(self.entry(x[:, step]) + self.memory(state))
        return self.head(state).log_softmax(-1)


# loops over a size are unrolled until its third value; then what precedes the loop, one turn, several turns and what
# follows the loop are compiled apart, turns also for a state that requires grad
@program(inputs=_sequences, sizes=_SIZES, few=(*_FEW, (5, 6)), compilations=8)
def recurrent_cell() -> nn.Module:
    return RecurrentCell()


class EulersMethod(nn.Module):
    """Follows a field, which a small network gives, by a number of steps that the caller chooses."""

    def __init__(self, width: int = 8, hidden: int = 64) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            x = x + self.field(x) / steps
        return x


@program(
    inputs=lambda batch, steps: {"x": torch.randn(batch, 8), "steps": steps},
    sizes=((16, 10), (16, 25), (16, 7), (64, 40), (16, 33)),
    few=((3, 4), (3, 7), (5, 5), (4, 9), (3, 10)),
    compilations=10,
)
def eulers_method() -> nn.Module:
    return EulersMethod()


class SoundEncoder(nn.Module):
    """Convolutions over samples, then attention over frames of which some are padding."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(inside, width, kernel, stride, bias=False)
            for inside, kernel, stride in ((1, 10, 5), (width, 3, 2), (width, 3, 2), (width, 2, 2))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in self.convolutions)
        self.positions = nn.Conv1d(width, width, 9, padding=4, groups=8)
        self.layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, samples: Tensor, lengths: Tensor) -> Tensor:
        x = samples[:, None]
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = nn.functional.gelu(norm(convolution(x)))
            lengths = (lengths - convolution.kernel_size[0]) // convolution.stride[0] + 1
        x = (x + self.positions(x)).transpose(1, 2)
        padding = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        x = self.layer(x, src_key_padding_mask=padding)
        return x.masked_fill(padding[..., None], 0).sum(1) / lengths[:, None]


def _sounds(batch: int, samples: int) -> Inputs:
    lengths = torch.randint(samples // 2, samples + 1, (batch,))
    lengths[0] = samples
    return {"samples": torch.randn(batch, samples), "lengths": lengths}


@program(
    inputs=_sounds,
    sizes=((2, 4000), (2, 6500), (4, 3333), (2, 9000), (3, 5000)),
    few=((2, 400), (2, 650), (3, 333), (4, 500)),
)
def sound_encoder() -> nn.Module:
    return SoundEncoder()
