"""Small configurations of transformers models, made from the defaults by rules on the names of their fields.

No model is named here except in the table EXTRA, which is data: what a model's defaults leave open. Nothing here builds
a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

VOCABULARY = 1024
_MOST_EXPERTS, _MOST_CHOSEN_EXPERTS = 32, 4
_LARGE_IMAGE = 448
_MOST_FRAMES, _LONGEST_CHUNK = 8, 32


@dataclass(frozen=True, slots=True)
class Scale:
    """How a configuration is made smaller.

    divide: widths (of hidden states, heads, feed-forward layers, …) are divided by this, so that their ratios stay.
    layers: the most layers of each stack.
    small_images: whether images of more than 448 pixels a side become a quarter as wide and high.
    fewer_heads: whether there are fewer heads of attention instead of narrower ones.
    """

    divide: int
    layers: int
    small_images: bool = True
    fewer_heads: bool = False


SCALES = (
    Scale(8, 2),
    Scale(8, 4),
    Scale(4, 2),
    Scale(4, 4),
    Scale(8, 2, small_images=False),
    Scale(2, 2),
    Scale(2, 4),
    Scale(1, 2),
    Scale(1, 4),
    Scale(8, 8),
    Scale(1, 8),
    Scale(4, 100, small_images=False),
    Scale(1, 100, small_images=False),
    Scale(8, 2, fewer_heads=True),
    Scale(4, 2, fewer_heads=True),
    Scale(2, 2, fewer_heads=True),
    Scale(8, 8, fewer_heads=True),
)
SEARCH = (0, 13, 1, 2, 14, 3, 4, 5, 15, 9, 16, 6, 7, 8, 10, 11, 12)  # positions in SCALES, in the order to try them

# What the defaults leave open or set inconsistently, by model type: merged over the defaults.
EXTRA: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 8},
    "bamba": {"attn_layer_indices": [1]},
    "esm": {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128},
    "informer": {"prediction_length": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "time_series_transformer": {"prediction_length": 8},
    "xmod": {"default_language": "en_XX"},
    **{
        name: {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [16, 24, 24]}}
        for name in ("glm4v_text", "glm4v_moe_text", "glm_image_text", "glm_ocr_text")
    },
}

_WIDTH = re.compile(
    r"(hidden_size|hidden_dim|hidden_channels|intermediate|_dim$|^dim$|_dims$|d_model|d_ff|d_kv|d_inner|d_head|d_embed"
    r"|n_embd|n_inner|embd|embed_dim|embedding_size|ffn_hidden|ffn_dim|_rank$|head_dim|dim_head|dim_key|mlp_dim"
    r"|projection_size|proj_dim|projection_dim|d_rel|rotary_dim|lru_width|kv_channels|mrope_section|hidden_sizes"
    r"|embed_dims|embedding_dim|encoder_embed|decoder_embed|kv_lora|q_lora|attention_hidden|classifier_proj_size"
    r"|conv_dim|tdnn_dim|neck_hidden|fpn_hidden|output_channels|mask_feature_size|linear_units|postnet_units"
    r"|predictor_channels|upsample_initial_channel|num_filters|num_pos_feats|dim_feedforward|feedforward_dim"
    r"|^channels$|encoder_in_channels|encoder_hidden|decoder_hidden|neck_out|latent_channels|base_channels"
    r"|pooler_output_size|output_size|resampler_hidden|coordinate_size|shape_size|word_embed_proj)"
)
_NOT_WIDTH = re.compile(
    r"(num_channels|in_chans|per_token|query_dim|divisor|expansion|^input_dim$|mult$|pool_dim|axis)"
)
_HEADS = re.compile(r"(num_\w*heads$|^n_heads?$|^\w*attention_heads$|^num_heads$)")
_OF_A_HEAD = re.compile(r"(head_dim|dim_head|d_head|d_kv|dim_key|kv_channels|mrope_section|rotary_dim|num_pos_feats)")
_LAYERS = re.compile(
    r"(num_\w*layers$|^n_layers?$|^\w*(encoder|decoder)_layers$|^depth$|^layers$|num_\w*blocks$|_layers_count$|num_layer$)"
)
_NOT_LAYERS = re.compile(r"(per_|feat_extract|adapter_layers|blocks_per|conv_layers|upscale|shared_layers|random)")
_EXPERTS = re.compile(r"^(n_routed_experts|num_experts|num_local_experts|moe_num_experts|n_experts)$")
_CHOSEN = re.compile(r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts|moe_top_k)$")
_IMAGE = re.compile(r"^(image_size|img_size|input_image_size|pretrain_image_size|crop_size)$")
_FRAMES = re.compile(r"^(num_frames|frames_per_clip)$")
_CHUNK = re.compile(r"^(mamba_)?chunk_size$")  # of tokens, to which a sequence is padded
_TOKEN = re.compile(r"(token_ids?|token_index|_index|_ids?)$")


def overrides(defaults: dict[str, Any], scale: Scale) -> dict[str, Any]:
    """The fields of a configuration (as a nested dict) that differ at this scale, with their new values."""
    return _Shrink(scale, _large_ids(defaults)).fields(defaults)


def _large_ids(fields: dict[str, Any]) -> dict[int, int]:
    """Ids of special tokens beyond the small vocabulary -> ids inside it, distinct as long as there is room."""
    found = sorted({number for number in _ids(fields) if number >= VOCABULARY})
    return {number: VOCABULARY - 1 - position % 64 for position, number in enumerate(found)}


def _ids(fields: dict[str, Any]) -> Iterator[int]:
    for name, value in fields.items():
        if _is_fields(value):
            yield from _ids(value)
        elif _TOKEN.search(name):
            yield from (v for v in (value if isinstance(value, list) else [value]) if type(v) is int)


@dataclass(frozen=True, slots=True)
class _Shrink:
    scale: Scale
    ids: dict[int, int]

    def fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        stacks = {v for name, v in fields.items() if type(v) is int and _is_layers(name)}
        for name, value in fields.items():
            if _is_by_layer(value):
                made = self.by_layer({int(key): entry for key, entry in value.items()}, fields, stacks)
            elif _is_fields(value):
                made = self.nested(value)
            else:
                made = self.field(name, value, fields, stacks)
            if made is not None and made != value:
                changed[name] = made
        return changed

    def nested(self, value: dict[str, Any]) -> Any:
        """Handed over whole: what the outer configuration chose need not be what the inner class would."""
        made = self.fields(value)
        return {**value, **made} if made else None

    def by_layer(self, value: dict[int, Any], fields: dict[str, Any], stacks: set[int]) -> dict[int, Any]:
        """Fields of single layers, by their numbers: those of the layers that stay, by their new numbers."""
        count = min((stack for stack in stacks if stack > max(value)), default=max(value) + 1)
        kept = enumerate(self.kept_layers(fields, count))
        return {new: {**value[old], **self.fields(value[old])} for new, old in kept if old in value}

    def field(self, name: str, value: Any, fields: dict[str, Any], stacks: set[int]) -> Any:
        if isinstance(value, list) and value:
            return self.sequence(name, value, fields, stacks)
        if type(value) is not int:
            return None
        if _is_layers(name):
            return len(self.kept_layers(fields, value))
        if name.endswith("vocab_size") or name in ("n_words", "unpadded_vocab_size", "num_embeddings"):
            return min(value, VOCABULARY)
        if _TOKEN.search(name):
            return self.ids.get(value, value)
        if _EXPERTS.search(name):
            return min(value, _MOST_EXPERTS)
        if _CHOSEN.search(name):
            return min(value, _MOST_CHOSEN_EXPERTS)
        if _IMAGE.search(name):
            return self.image(value)
        if _FRAMES.search(name):
            return min(value, _MOST_FRAMES)
        if _CHUNK.search(name):
            return min(value, _LONGEST_CHUNK)
        return self.width(name, value)

    def sequence(self, name: str, value: list[Any], fields: dict[str, Any], stacks: set[int]) -> Any:
        if _TOKEN.search(name) and all(type(v) is int for v in value):
            return [self.ids.get(v, v) for v in value]
        if len(value) in stacks and len(value) > self.scale.layers:
            return [value[index] for index in self.kept_layers(fields, len(value))]
        if name in ("depths", "num_blocks", "layers") and all(type(v) is int for v in value):
            return [min(v, self.scale.layers) for v in value]
        if _IMAGE.search(name) and all(type(v) is int for v in value):
            return [self.image(v) for v in value]
        if all(type(v) is int for v in value):
            return [self.width(name, v) for v in value]
        return None

    def width(self, name: str, value: int) -> int:
        if self.scale.fewer_heads:
            if _HEADS.search(name):
                return max(1, value // self.scale.divide)
            if _OF_A_HEAD.search(name):
                return value
        if _WIDTH.search(name) and not _NOT_WIDTH.search(name) and value >= 16 and value % self.scale.divide == 0:
            return value // self.scale.divide
        return value

    def image(self, value: int) -> int:
        return value // 4 if self.scale.small_images and value >= _LARGE_IMAGE and value % 4 == 0 else value

    def kept_layers(self, fields: dict[str, Any], count: int) -> list[int]:
        """Which of `count` layers stay: the first ones, and one of each kind that the lists of kinds tell apart."""
        kinds = [v for v in fields.values() if isinstance(v, list) and len(v) == count and v and isinstance(v[0], str)]
        kept = set(range(min(count, self.scale.layers)))
        seen = {tuple(kind[index] for kind in kinds) for index in kept}
        for index in range(count):
            kind = tuple(kind[index] for kind in kinds)
            if kind not in seen:
                seen.add(kind)
                kept.add(index)
        return sorted(kept)


def _is_fields(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_by_layer(value: Any) -> bool:
    """Whether these are fields of single layers; a number may be written as text."""
    if not isinstance(value, dict) or not value:
        return False
    return all(str(key).isdecimal() and _is_fields(entry) for key, entry in value.items())


def _is_layers(name: str) -> bool:
    return bool(_LAYERS.search(name)) and not _NOT_LAYERS.search(name)
