"""Transformers of x-transformers, and recurrent networks written by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .family import Built, family

_VOCABULARY = 500


def _ids(length: int = 64, batch: int = 2) -> Tensor:
    return torch.randint(0, _VOCABULARY, (batch, length))


class _One(nn.Module):
    """A network called with one positional argument."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Any:
        return self.network(x)


@family("x-transformers")
def x_decoder() -> Built:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=128, depth=3, heads=4, rotary_pos_emb=True, ff_swish=True, ff_glu=True, use_rmsnorm=True)
    return Built(
        _One(TransformerWrapper(num_tokens=_VOCABULARY, max_seq_len=64, attn_layers=layers)), lambda: {"x": _ids()}
    )


@family("x-transformers")
def x_encoder() -> Built:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=128, depth=3, heads=4, alibi_pos_bias=True, alibi_num_heads=2, attn_pre_talking_heads=True)
    return Built(
        _One(TransformerWrapper(num_tokens=_VOCABULARY, max_seq_len=64, attn_layers=layers)), lambda: {"x": _ids()}
    )


@family("x-transformers")
def x_language_loss() -> Built:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=128, depth=3, heads=4, attn_kv_heads=2, rel_pos_bias=True)
    model = TransformerWrapper(num_tokens=_VOCABULARY, max_seq_len=64, attn_layers=layers)
    return Built(_One(AutoregressiveWrapper(model)), lambda: {"x": _ids(65)})


@family("x-transformers")
def x_encoder_decoder() -> Built:
    from x_transformers import XTransformer

    model = XTransformer(
        dim=128,
        enc_num_tokens=_VOCABULARY,
        enc_depth=2,
        enc_heads=4,
        enc_max_seq_len=64,
        dec_num_tokens=_VOCABULARY,
        dec_depth=2,
        dec_heads=4,
        dec_max_seq_len=64,
    )
    return Built(model, lambda: {"src": _ids(), "tgt": _ids(48)})


@family("x-transformers")
def x_vision() -> Built:
    from x_transformers import Encoder, ViTransformerWrapper

    layers = Encoder(dim=128, depth=3, heads=4)
    model = ViTransformerWrapper(image_size=64, patch_size=8, num_classes=10, attn_layers=layers)
    return Built(_One(model), lambda: {"x": torch.randn(2, 3, 64, 64)})


@family("plain")
def lstm_language_model() -> Built:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(_VOCABULARY, 128), nn.Linear(128, _VOCABULARY)
            self.layers, self.drop = nn.LSTM(128, 128, 2, batch_first=True, dropout=0.2), nn.Dropout(0.2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            output, (hidden, _) = self.layers(self.drop(self.embedding(x)))
            logits = self.head(self.drop(output))
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten())
            return loss, hidden

    return Built(Language(), lambda: {"x": _ids(64, 8)})


@family("plain")
def gru_translation() -> Built:
    """An encoder, and a decoder with attention whose loop over time is Python's."""

    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(_VOCABULARY, 64)
            self.encoder, self.decoder = nn.GRU(64, 64, batch_first=True), nn.GRUCell(128, 64)
            self.head = nn.Linear(64, _VOCABULARY)

        def forward(self, source: Tensor, target: Tensor) -> Tensor:
            memory, hidden = self.encoder(self.embedding(source))
            hidden, logits = hidden[0], []
            for token in self.embedding(target).unbind(1):
                weights = torch.softmax(torch.einsum("bth,bh->bt", memory, hidden), -1)
                context = torch.einsum("bt,bth->bh", weights, memory)
                hidden = self.decoder(torch.cat([token, context], -1), hidden)
                logits.append(self.head(hidden))
            return torch.stack(logits, 1)

    return Built(Translation(), lambda: {"source": _ids(20, 8), "target": _ids(12, 8)})


@family("plain")
def speech_synthesis() -> Built:
    """Convolutions and a bidirectional LSTM read text; two LSTM cells with location attention write frames."""

    class Synthesis(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(_VOCABULARY, 64)
            self.convolutions = nn.Sequential(nn.Conv1d(64, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU())
            self.encoder = nn.LSTM(64, 32, batch_first=True, bidirectional=True)
            self.before = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5))
            self.attention, self.decoder = nn.LSTMCell(96, 64), nn.LSTMCell(128, 64)
            self.location, self.query = nn.Conv1d(1, 8, 7, padding=3), nn.Linear(64, 8)
            self.memory, self.score = nn.Linear(64, 8), nn.Linear(8, 1)
            self.frame, self.stop = nn.Linear(128, 20), nn.Linear(128, 1)

        def forward(self, text: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
            memory, _ = self.encoder(self.convolutions(self.embedding(text).transpose(1, 2)).transpose(1, 2))
            keys = self.memory(memory)
            first = second = (memory.new_zeros(len(text), 64), memory.new_zeros(len(text), 64))
            context, weights = memory.new_zeros(len(text), 64), memory.new_zeros(text.shape)
            made, stops = [], []
            for step in range(frames.size(1)):
                first = self.attention(torch.cat([self.before(frames[:, step]), context], -1), first)
                places = self.location(weights[:, None]).transpose(1, 2)
                scores = self.score(torch.tanh(keys + places + self.query(first[0])[:, None]))[..., 0]
                weights = scores.softmax(-1)
                context = torch.bmm(weights[:, None], memory)[:, 0]
                second = self.decoder(torch.cat([first[0], context], -1), second)
                both = torch.cat([second[0], context], -1)
                made.append(self.frame(both))
                stops.append(self.stop(both))
            return torch.stack(made, 1), torch.cat(stops, 1)

    return Built(Synthesis(), lambda: {"text": _ids(24, 4), "frames": torch.randn(4, 10, 20)})


@family("plain")
def packed_tagger() -> Built:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(_VOCABULARY, 64), nn.Linear(128, 12)
            self.layers = nn.LSTM(64, 64, 2, batch_first=True, bidirectional=True)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(x), lengths, batch_first=True, enforce_sorted=False
            )
            output, _ = nn.utils.rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)
            return self.head(output)

    return Built(Tagger(), lambda: {"x": _ids(40, 8), "lengths": torch.tensor([40, 35, 31, 22, 18, 9, 38, 5])})


@family("plain")
def convolutional_lstm() -> Built:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.head = nn.Conv2d(16 + 3, 64, 3, padding=1), nn.Conv2d(16, 3, 1)

        def forward(self, frames: Tensor) -> Tensor:
            hidden = cell = frames.new_zeros(frames.size(0), 16, *frames.shape[-2:])
            for frame in frames.unbind(1):
                i, f, o, g = self.gates(torch.cat([frame, hidden], 1)).chunk(4, 1)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                hidden = o.sigmoid() * cell.tanh()
            return self.head(hidden)

    return Built(Cells(), lambda: {"frames": torch.randn(2, 6, 3, 24, 24)})
