"""Inputs for one call of a transformers model, from the names of its forward's parameters and its configuration.

Data by parameter name; nothing here knows a model.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

BATCH, LENGTH = 2, 16

Maker = Callable[["Fields"], Any]


class Fields:
    """Looks up fields of a configuration, by several names, also in the configurations inside it."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def get(self, *names: str, default: Any) -> Any:
        for name in names:
            for value in _search(self.config, name, 0):
                if isinstance(value, int | list | tuple) and not isinstance(value, bool):
                    return value
        return default

    def number(self, *names: str, default: int) -> int:
        value = self.get(*names, default=default)
        return int(value[0] if isinstance(value, list | tuple) else value)

    def image_size(self) -> tuple[int, int]:
        value = self.get("image_size", "img_size", "input_image_size", default=224)
        if isinstance(value, list | tuple):
            return int(value[0]), int(value[-1])
        return int(value), int(value)


def _search(config: Any, name: str, depth: int) -> Iterator[Any]:
    own = getattr(config, "__dict__", {})
    if own.get(name) is not None:
        yield own[name]
    if depth < 3:
        for value in own.values():
            if hasattr(value, "model_type") and hasattr(value, "to_dict"):
                yield from _search(value, name, depth + 1)


def _ids(fields: Fields, length: int = LENGTH) -> torch.Tensor:
    vocabulary = fields.number("vocab_size", "n_words", default=100)
    special = {v for key, v in _special(fields.config) if key.endswith(("token_id", "token_index"))}
    usual = [number for number in range(min(vocabulary, 4096)) if number not in special] or [0]
    return torch.tensor(usual)[torch.randint(0, len(usual), (BATCH, length))]


def _special(config: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    for name, value in getattr(config, "__dict__", {}).items():
        if type(value) is int:
            yield name, value
        elif depth < 3 and hasattr(value, "to_dict"):
            yield from _special(value, depth + 1)


def _image(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, fields.number("num_channels", "in_channels", "in_chans", default=3), *fields.image_size())


def _video(fields: Fields) -> torch.Tensor:
    frames = fields.number("num_frames", "frames_per_clip", default=8)
    return torch.randn(
        BATCH, frames, fields.number("num_channels", "in_channels", "in_chans", default=3), *fields.image_size()
    )


def _padded(fields: Fields) -> torch.Tensor:
    """With padding: where all are ones, transformers in eager mode sees that in the data and leaves the mask out."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[-1, -3:] = 0
    return mask


def _boxes(fields: Fields) -> torch.Tensor:
    corners = torch.randint(0, 400, (BATCH, LENGTH, 2))
    return torch.cat([corners, corners + torch.randint(1, 100, (BATCH, LENGTH, 2))], dim=-1)


def _mels(fields: Fields) -> int:
    return fields.number("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim", default=80)


def _frames_last(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, _mels(fields), 2 * fields.number("max_source_positions", default=64))


def _frames_first(fields: Fields) -> torch.Tensor:
    width = fields.number(
        "feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins", "input_dim", default=80
    )
    return torch.randn(BATCH, 128, width)


def _mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, 128, _mels(fields))


def _long_mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, fields.number("max_length", "max_source_positions", default=1024), _mels(fields))


def _image_of_mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, 1, 1001, _mels(fields))


def _patches(fields: Fields) -> torch.Tensor:
    """Flattened patches of one image of 8 by 8 patches."""
    side = fields.number("patch_size", default=14)
    channels = fields.number("in_channels", "in_chans", "num_channels", default=3)
    return torch.randn(64, channels * fields.number("temporal_patch_size", default=1) * side * side)


def _waves(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, 8000) * 0.1


def _waves_of_one_channel(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, 1, 7680) * 0.1


def _series(fields: Fields) -> torch.Tensor:
    lags = fields.get("lags_sequence", default=[0])
    length = fields.number("context_length", default=32) + max(lags)
    size = fields.number("num_input_channels", "input_size", default=1)
    return torch.randn(BATCH, length) if size == 1 else torch.randn(BATCH, length, size)


def _series_of_channels(fields: Fields) -> torch.Tensor:
    return torch.randn(
        BATCH, fields.number("context_length", default=32), fields.number("num_input_channels", default=1)
    )


def _series_flat(fields: Fields) -> torch.Tensor:
    return torch.randn(BATCH, fields.number("context_length", default=32))


def _time_features(fields: Fields, length: int) -> torch.Tensor:
    return torch.randn(BATCH, length, max(fields.number("num_time_features", default=1), 0))


def _past_time_features(fields: Fields) -> torch.Tensor:
    return _time_features(
        fields, fields.number("context_length", default=32) + max(fields.get("lags_sequence", default=[0]))
    )


def _codes(fields: Fields) -> torch.Tensor:
    count = fields.number("num_codebooks", "num_quantizers", "n_codebooks", default=8)
    return torch.randint(0, fields.number("codebook_size", "vocab_size", default=100), (BATCH, count, LENGTH))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input (text, image, …): the parameters that carry it, each with ways to make it, likeliest first.

    The others are only given along with the first.
    """

    name: str
    makers: dict[str, tuple[Maker, ...]]


KINDS = (
    Kind(
        "text",
        {
            "input_ids": (_ids, lambda fields: _ids(fields, fields.number("max_position_embeddings", default=64))),
            "attention_mask": (_padded, lambda fields: torch.ones(BATCH, LENGTH, dtype=torch.long)),
            "bbox": (_boxes, lambda fields: torch.rand(BATCH, LENGTH, 8)),
        },
    ),
    Kind("decoder", {"decoder_input_ids": (_ids,)}),
    Kind("image", {"pixel_values": (_image, _video)}),
    Kind("video", {"pixel_values_videos": (_video,)}),
    Kind("audio", {"input_features": (_frames_last, _frames_first, _mel_frames, _image_of_mel_frames)}),
    Kind("waves", {"input_values": (_waves, _waves_of_one_channel, _mel_frames, _long_mel_frames, _ids)}),
    Kind("codes", {"audio_codes": (_codes,)}),
    Kind("plain codes", {"codes": (_codes,)}),
    Kind("points", {"input_points": (lambda fields: torch.rand(BATCH, 1, 2, 2) * 100,)}),
    Kind(
        "series",
        {
            "past_values": (_series, _series_of_channels, _series_flat),
            "past_time_features": (_past_time_features,),
            "past_observed_mask": (lambda fields: torch.ones_like(_series(fields)),),
        },
    ),
    Kind(
        "states",
        {
            "hidden_states": (
                lambda fields: torch.randn(LENGTH, fields.number("hidden_size", "embed_dim", default=64)),
                lambda fields: torch.randn(BATCH, LENGTH, fields.number("hidden_size", "d_model", default=64)),
                _patches,
            )
        },
    ),
    Kind("grid", {"grid_thw": (lambda fields: torch.tensor([[1, 8, 8]]),)}),
    Kind(
        "queries", {"query_embeds": (lambda fields: torch.randn(BATCH, 8, fields.number("hidden_size", default=64)),)}
    ),
    Kind(
        "embeddings",
        {
            "inputs_embeds": (
                lambda fields: torch.randn(BATCH, LENGTH, fields.number("hidden_size", "d_model", default=64)),
                _patches,
            )
        },
    ),
    Kind("input", {"inputs": (_ids,)}),
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which parameters are given and which of their makers is used: kept in the results, so that a run repeats it."""

    chosen: tuple[tuple[str, int], ...]

    def make(self, config: Any) -> dict[str, Any]:
        fields = Fields(config)
        makers = {name: made for kind in KINDS for name, made in kind.makers.items()}
        return {name: makers[name][number](fields) for name, number in self.chosen}


def recipes(model: torch.nn.Module) -> Iterator[Recipe]:
    """Ways to call the model, the fullest first; of two equally full ones that with the model's main input."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    kinds = [
        {name: made for name, made in kind.makers.items() if name in parameters}
        for kind in KINDS
        if next(iter(kind.makers)) in parameters and kind.name != "embeddings"
    ]
    subsets = [subset for size in range(len(kinds), 0, -1) for subset in itertools.combinations(kinds, size)]
    subsets.sort(key=lambda subset: (-len(subset), not any(main in kind for kind in subset)))
    for subset in subsets:
        names = [(name, len(made)) for kind in subset for name, made in kind.items()]
        yield from _ways(names)
        without = [(name, count) for name, count in names if name not in ("attention_mask", "past_observed_mask")]
        if len(without) < len(names) and without:
            yield from _ways(without)
    if "inputs_embeds" in parameters:
        yield Recipe((("inputs_embeds", 0),))


def _ways(names: list[tuple[str, int]]) -> Iterator[Recipe]:
    for numbers in itertools.product(*[range(count) for _, count in names]):
        yield Recipe(tuple((name, number) for (name, _), number in zip(names, numbers, strict=True)))
