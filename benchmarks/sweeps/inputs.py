"""Inputs for one call of a transformers model, from the names of its forward's parameters and its configuration.

Data by parameter name; nothing here knows a model.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Size = tuple[int, int]  # rows, and tokens of a row; sounds are as long in proportion
USUAL: Size = (2, 16)

Maker = Callable[["Fields"], Any]


class Fields:
    """Looks up fields of a configuration, by several names, also in the configurations inside it.

    placeholders: how many tokens of each row of ids stand for features of an image, a video or a sound.
    made: the inputs made so far for the same call. size: its batch, and its length of text.
    """

    def __init__(self, config: Any, placeholders: tuple[tuple[str, int], ...] = (), size: Size = USUAL) -> None:
        self.config = config
        self.placeholders = placeholders
        self.size = size
        self.batch, self.tokens = size
        self.made: dict[str, Any] = {}

    @property
    def length(self) -> int:
        return self.tokens + sum(count for _, count in self.placeholders)

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
    own = config if isinstance(config, dict) else getattr(config, "__dict__", {})
    if own.get(name) is not None:
        yield own[name]
    if depth < 3:
        for value in own.values():
            if isinstance(value, dict) or (hasattr(value, "model_type") and hasattr(value, "to_dict")):
                yield from _search(value, name, depth + 1)


def _ids(fields: Fields, length: int | None = None) -> torch.Tensor:
    vocabulary = fields.number("vocab_size", "n_words", default=100)
    special = {v for key, v in _special(fields.config) if key.endswith(("token_id", "token_index"))}
    usual = [number for number in range(min(vocabulary, 4096)) if number not in special] or [0]
    ids = torch.tensor(usual)[torch.randint(0, len(usual), (fields.batch, fields.length if length is None else length))]
    for kind, begin, end in _spans(fields):
        ids[:, begin:end] = placeholder_id(fields.config, kind)
    return ids


def _spans(fields: Fields) -> Iterator[tuple[str, int, int]]:
    """(kind, begin, end) of the placeholders in each row: behind the first token, one kind after the other."""
    begin = 1
    for kind, count in fields.placeholders:
        yield kind, begin, begin + count
        begin += count


def placeholder_id(config: Any, kind: str) -> int | None:
    """The id that stands for one feature of an image, a video or a sound (`kind`) in the text."""
    found = Fields(config).get(f"{kind}_token_id", f"{kind}_token_index", default=None)
    return found if type(found) is int else None


def _plain_ids(fields: Fields) -> torch.Tensor:
    return _ids(Fields(fields.config, size=fields.size))


def _kinds_of_tokens(fields: Fields) -> torch.Tensor:
    numbers = {"image": 1, "video": 2, "audio": 3}
    kinds = torch.zeros(fields.batch, fields.length, dtype=torch.long)
    for kind, begin, end in _spans(fields):
        kinds[:, begin:end] = numbers[kind]
    return kinds


def _special(config: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    for name, value in getattr(config, "__dict__", {}).items():
        if type(value) is int:
            yield name, value
        elif depth < 3 and hasattr(value, "to_dict"):
            yield from _special(value, depth + 1)


def _image(fields: Fields) -> torch.Tensor:
    return torch.randn(
        fields.batch, fields.number("num_channels", "in_channels", "in_chans", default=3), *fields.image_size()
    )


def _video(fields: Fields) -> torch.Tensor:
    frames = fields.number("num_frames", "frames_per_clip", default=8)
    return torch.randn(
        fields.batch, frames, fields.number("num_channels", "in_channels", "in_chans", default=3), *fields.image_size()
    )


def _images_of_a_row(count: int) -> Maker:
    """Several images (tiles, pairs) for each row of the batch."""

    def make(fields: Fields) -> torch.Tensor:
        return torch.stack([_image(fields) for _ in range(count)], dim=1)

    return make


def _patches_of_grids(fields: Fields) -> torch.Tensor:
    return torch.cat([_patches(fields) for _ in range(fields.batch)])


def _grids(fields: Fields) -> torch.Tensor:
    """(frames, rows, columns) of patches of one image for each row of the batch."""
    return torch.tensor([[1, 8, 8]] * fields.batch)


def _batched_patches(fields: Fields) -> torch.Tensor:
    return torch.stack([_patches(fields) for _ in range(fields.batch)])


def _places_of_patches(fields: Fields) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    return torch.stack([columns.flatten(), rows.flatten()], dim=-1).expand(fields.batch, 64, 2).contiguous()


def _image_sizes(fields: Fields) -> torch.Tensor:
    return torch.tensor([fields.image_size()] * fields.batch)


def _mask_of(name: str, dimension: int) -> Maker:
    """Ones for every step of another input, along its given dimension."""

    def make(fields: Fields) -> torch.Tensor:
        return torch.ones(fields.batch, fields.made[name].shape[dimension], dtype=torch.long)

    return make


def _padded(fields: Fields) -> torch.Tensor:
    """With padding: where all are ones, transformers in eager mode sees that in the data and leaves the mask out."""
    mask = torch.ones(fields.batch, fields.length, dtype=torch.long)
    mask[-1, -3:] = 0
    return mask


def _boxes(fields: Fields) -> torch.Tensor:
    corners = torch.randint(0, 400, (fields.batch, fields.tokens, 2))
    return torch.cat([corners, corners + torch.randint(1, 100, (fields.batch, fields.tokens, 2))], dim=-1)


def _mels(fields: Fields) -> int:
    return fields.number("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_dim", default=80)


def _frames_last(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, _mels(fields), 2 * fields.number("max_source_positions", default=64))


def _frames_first(fields: Fields) -> torch.Tensor:
    width = fields.number(
        "feature_projection_input_dim", "input_feat_per_channel", "num_mel_bins", "input_dim", default=80
    )
    return torch.randn(fields.batch, 8 * fields.tokens, width)


def _mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, 8 * fields.tokens, _mels(fields))


def _long_mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, fields.number("max_length", "max_source_positions", default=1024), _mels(fields))


def _image_of_mel_frames(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, 1, 1001, _mels(fields))


def _patches(fields: Fields) -> torch.Tensor:
    """Flattened patches of one image of 8 by 8 patches."""
    side = fields.number("patch_size", default=14)
    channels = fields.number("in_channels", "in_chans", "num_channels", default=3)
    return torch.randn(64, channels * fields.number("temporal_patch_size", default=1) * side * side)


def _waves(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, 500 * fields.tokens) * 0.1


def _waves_of_one_channel(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, 1, 480 * fields.tokens) * 0.1


def _series(fields: Fields) -> torch.Tensor:
    lags = fields.get("lags_sequence", default=[0])
    length = fields.number("context_length", default=32) + max(lags)
    size = fields.number("num_input_channels", "input_size", default=1)
    return torch.randn(fields.batch, length) if size == 1 else torch.randn(fields.batch, length, size)


def _series_of_channels(fields: Fields) -> torch.Tensor:
    return torch.randn(
        fields.batch, fields.number("context_length", default=32), fields.number("num_input_channels", default=1)
    )


def _series_flat(fields: Fields) -> torch.Tensor:
    return torch.randn(fields.batch, fields.number("context_length", default=32))


def _time_features(fields: Fields, length: int) -> torch.Tensor:
    return torch.randn(fields.batch, length, max(fields.number("num_time_features", default=1), 0))


def _past_time_features(fields: Fields) -> torch.Tensor:
    return _time_features(
        fields, fields.number("context_length", default=32) + max(fields.get("lags_sequence", default=[0]))
    )


def _codes(fields: Fields) -> torch.Tensor:
    count = fields.number("num_codebooks", "num_quantizers", "n_codebooks", default=8)
    size = fields.number("codebook_size", "vocab_size", default=100)
    return torch.randint(0, size, (fields.batch, count, fields.tokens))


def _random(fields: Fields, *sizes: int) -> torch.Tensor:
    """sizes: of a row of the batch."""
    return torch.randn(fields.batch, *sizes)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of input (text, image, …): the parameters that carry it, each with ways to make it, likeliest first.

    The others are only given along with the first. `needs` and `unless` name a parameter that the forward has to have,
    or must not have, for this to be the kind that it takes.
    """

    name: str
    makers: dict[str, tuple[Maker, ...]]
    needs: str = ""
    unless: tuple[str, ...] = ()

    def fits(self, parameters: Iterable[str]) -> bool:
        names = (next(iter(self.makers)), *([self.needs] if self.needs else ()))
        return all(name in parameters for name in names) and not any(name in parameters for name in self.unless)


_OF_FEATURES = (_mask_of("input_features", -1), _mask_of("input_features", 1))

KINDS = (
    Kind(
        "text",
        {
            "input_ids": (_ids, lambda fields: _ids(fields, fields.number("max_position_embeddings", default=64))),
            "attention_mask": (_padded, lambda fields: torch.ones(fields.batch, fields.length, dtype=torch.long)),
            "bbox": (_boxes, lambda fields: torch.rand(fields.batch, fields.tokens, 8)),
            "mm_token_type_ids": (_kinds_of_tokens,),
            "qformer_input_ids": (_plain_ids,),
            "visual_feats": (lambda fields: _random(fields, 10, fields.number("visual_feat_dim", default=2048)),),
            "visual_pos": (lambda fields: torch.rand(fields.batch, 10, fields.number("visual_pos_dim", default=4)),),
        },
    ),
    Kind("decoder", {"decoder_input_ids": (_plain_ids,)}),
    Kind(
        "image",
        {
            "pixel_values": (_image, _video, _images_of_a_row(1), _images_of_a_row(2)),
            "prompt_pixel_values": (_image,),
            "prompt_masks": (_image,),
        },
        unless=("image_grid_thw", "pixel_position_ids", "spatial_shapes", "image_sizes", "grid_thw"),
    ),
    Kind(
        "image in tiles",
        {"pixel_values": (_image, _images_of_a_row(3), _images_of_a_row(5)), "image_sizes": (_image_sizes,)},
        needs="image_sizes",
    ),
    Kind(
        "image as a grid", {"pixel_values": (_patches_of_grids,), "image_grid_thw": (_grids,)}, needs="image_grid_thw"
    ),
    Kind(
        "image as patches at places",
        {"pixel_values": (_batched_patches,), "pixel_position_ids": (_places_of_patches,)},
        needs="pixel_position_ids",
    ),
    Kind(
        "image as patches of a shape",
        {
            "pixel_values": (_batched_patches,),
            "pixel_attention_mask": (_mask_of("pixel_values", 1),),
            "spatial_shapes": (lambda fields: torch.tensor([[8, 8]] * fields.batch),),
        },
        needs="spatial_shapes",
    ),
    Kind(
        "image of a grid",
        {
            "pixel_values": (_patches,),
            "grid_thw": (lambda fields: torch.tensor([[1, 8, 8]]),),
            "merge_sizes": (lambda fields: torch.tensor([1]),),
        },
        needs="grid_thw",
    ),
    Kind("video", {"pixel_values_videos": (_video,)}, unless=("video_grid_thw",)),
    Kind(
        "audio",
        {
            "input_features": (_frames_last, _frames_first, _mel_frames, _image_of_mel_frames),
            "input_features_mask": _OF_FEATURES,
            "feature_attention_mask": _OF_FEATURES,
        },
    ),
    Kind("waves", {"input_values": (_waves, _waves_of_one_channel, _mel_frames, _long_mel_frames, _plain_ids)}),
    Kind("codes", {"audio_codes": (_codes,)}),
    Kind("plain codes", {"codes": (_codes,)}),
    Kind("points", {"input_points": (lambda fields: torch.rand(fields.batch, 1, 2, 2) * 100,)}),
    Kind(
        "series",
        {
            "past_values": (_series, _series_of_channels, _series_flat),
            "past_time_features": (_past_time_features,),
            "past_observed_mask": (lambda fields: torch.ones_like(_series(fields)),),
            "past_values_padding": (lambda fields: torch.zeros(fields.made["past_values"].shape),),
            "freq": (lambda fields: torch.zeros(fields.batch, 1, dtype=torch.long),),
        },
    ),
    Kind(
        "states",
        {
            "hidden_states": (
                lambda fields: torch.randn(fields.tokens, fields.number("hidden_size", "embed_dim", default=64)),
                lambda fields: torch.randn(
                    fields.batch, fields.tokens, fields.number("hidden_size", "d_model", default=64)
                ),
                _patches,
                _waves_of_one_channel,
            )
        },
    ),
    Kind("grid", {"grid_thw": (lambda fields: torch.tensor([[1, 8, 8]]),)}, unless=("pixel_values",)),
    Kind(
        "queries",
        {"query_embeds": (lambda fields: _random(fields, 8, fields.number("hidden_size", default=64)),)},
    ),
    Kind(
        "embeddings",
        {
            "inputs_embeds": (
                lambda fields: torch.randn(
                    fields.batch, fields.tokens, fields.number("hidden_size", "d_model", default=64)
                ),
                _patches,
            )
        },
    ),
    Kind(
        "input",
        {
            "inputs": (
                _plain_ids,
                lambda fields: torch.randn(
                    fields.batch, fields.tokens, fields.number("d_model", "hidden_size", default=64)
                ),
            )
        },
    ),
)
_OPTIONAL = (
    "attention_mask",
    "past_observed_mask",
    "input_features_mask",
    "feature_attention_mask",
    "image_sizes",
    "pixel_attention_mask",
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Which parameters are given, made how: kept in the results, so that a run repeats it.

    chosen: (parameter, (name of the kind, position of the maker)).
    placeholders: (image, video or audio, how many tokens of each row of ids stand for its features).
    """

    chosen: tuple[tuple[str, str, int], ...]
    placeholders: tuple[tuple[str, int], ...] = ()

    def make(self, config: Any, size: Size = USUAL) -> dict[str, Any]:
        fields = Fields(config, self.placeholders, size)
        makers = {kind.name: kind.makers for kind in KINDS}
        for name, kind, number in self.chosen:
            fields.made[name] = makers[kind][name][number](fields)
        return fields.made

    def names(self) -> str:
        return "+".join(name for name, _, _ in self.chosen)


def recipes(model: torch.nn.Module) -> Iterator[Iterator[Recipe]]:
    """Ways to call the model with each set of kinds of inputs, the fullest first; of two equally full ones that with
    the model's main input."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    kinds = [kind for kind in KINDS if kind.name != "embeddings" and kind.fits(parameters)]
    subsets = [subset for size in range(len(kinds), 0, -1) for subset in itertools.combinations(kinds, size)]
    subsets.sort(key=lambda subset: (-len(subset), not any(main in kind.makers for kind in subset)))
    for subset in subsets:
        yield _ways_of_kinds(subset, parameters)
    if "inputs_embeds" in parameters:
        yield iter([Recipe((("inputs_embeds", "embeddings", 0),))])


def _ways_of_kinds(kinds: Iterable[Kind], parameters: Iterable[str]) -> Iterator[Recipe]:
    makers = [(name, kind.name, len(made)) for kind in kinds for name, made in kind.makers.items()]
    names = [entry for entry in makers if entry[0] in parameters]
    optional = [name for name, _, _ in names if name in _OPTIONAL]
    for dropped in dict.fromkeys(((), *((name,) for name in optional), tuple(optional))):
        if len(dropped) < len(names):
            yield from _ways([entry for entry in names if entry[0] not in dropped])


def _ways(names: list[tuple[str, str, int]]) -> Iterator[Recipe]:
    for numbers in itertools.product(*[range(count) for _, _, count in names]):
        yield Recipe(tuple((name, kind, number) for (name, kind, _), number in zip(names, numbers, strict=True)))


# ---- placeholders: as many as the model makes features ----

_FEATURES = (
    ("image", "get_image_features", ("pixel_values",)),
    ("video", "get_video_features", ("pixel_values_videos",)),
    ("audio", "get_audio_features", ("input_features", "input_values")),
)


def with_placeholders(model: torch.nn.Module, recipe: Recipe) -> Recipe:
    """The same call, its ids with as many placeholders as the model says that it makes features of the other inputs."""
    names = [name for name, _, _ in recipe.chosen]
    if "input_ids" not in names:
        return recipe
    found: list[tuple[str, int]] = []
    for kind, method, carriers in _FEATURES:
        if any(name in names for name in carriers) and placeholder_id(model.config, kind) is not None:
            count = _features(getattr(model, method, None), recipe.make(model.config))
            if count and count % USUAL[0] == 0:
                found.append((kind, count // USUAL[0]))
    return dataclasses.replace(recipe, placeholders=tuple(found))


def _features(method: Callable[..., Any] | None, inputs: dict[str, Any]) -> int:
    """How many features `method` makes of the inputs that it takes; 0 where it cannot be called with them."""
    if method is None:
        return 0
    taken = inspect.signature(method).parameters
    try:
        output = method(**{name: value for name, value in inputs.items() if name in taken})
    except Exception:
        return 0  # the call of the whole model says what is missing
    output = getattr(output, "pooler_output", output)
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() // tensor.shape[-1] for tensor in tensors if tensor.ndim)
