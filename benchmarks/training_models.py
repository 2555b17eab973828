"""The models of the training benchmark, in training mode with labels: unmodified, from transformers and timm.

Each is built with its loss, so that a step is: forward, loss, backward, optimizer. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import TIMM as INFERENCE_TIMM
from benchmarks.models import TRANSFORMERS as INFERENCE_TRANSFORMERS
from benchmarks.models import import_torchvision


@dataclass(frozen=True)
class TrainingCase:
    """A model in training mode and one batch. `loss(model)` runs the model on it and returns the scalar loss."""

    name: str
    model: torch.nn.Module
    loss: Callable[[Callable[..., Any]], torch.Tensor]


_SMALL = dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500)
_ELECTRA = dict(num_hidden_layers=4, embedding_size=128, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
_OPT = dict(num_hidden_layers=4, hidden_size=512, num_attention_heads=8, ffn_dim=2048, word_embed_proj_dim=512)
_OPT_SMALL = dict(
    num_hidden_layers=2, hidden_size=64, num_attention_heads=4, ffn_dim=128, word_embed_proj_dim=64, vocab_size=500
)
_WHISPER = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)

# config class, model class, and what differs from the defaults: first at full size, then in small
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    **INFERENCE_TRANSFORMERS,
    # labels become decoder inputs, which this configuration says no beginning of by default
    "T5ForConditionalGeneration": (
        *INFERENCE_TRANSFORMERS["T5ForConditionalGeneration"][:2],
        *(dict(extra, decoder_start_token_id=0) for extra in INFERENCE_TRANSFORMERS["T5ForConditionalGeneration"][2:]),
    ),
    "AlbertForMaskedLM": (
        "AlbertConfig",
        "AlbertForMaskedLM",
        dict(num_hidden_layers=4, hidden_size=768, num_attention_heads=12, intermediate_size=3072),
        dict(_SMALL, embedding_size=32),
    ),
    "RobertaForMaskedLM": ("RobertaConfig", "RobertaForMaskedLM", dict(num_hidden_layers=4), _SMALL),
    "ElectraForMaskedLM": ("ElectraConfig", "ElectraForMaskedLM", _ELECTRA, dict(_SMALL, embedding_size=32)),
    "OPTForCausalLM": ("OPTConfig", "OPTForCausalLM", _OPT, _OPT_SMALL),
    "ViTForImageClassification": (
        "ViTConfig",
        "ViTForImageClassification",
        dict(num_hidden_layers=4, num_labels=1000),
        dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, image_size=32),
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        dict(_WHISPER, d_model=256, encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_source_positions=500),
        dict(_WHISPER, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=32, vocab_size=51865),
    ),
}

# what differs from the defaults in small, and the small image size
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    **INFERENCE_TIMM,
    "efficientnet_b0": ({}, 64),
    "mixer_b16_224": (dict(mlp_ratio=(0.5, 0.25), img_size=32), 32),
    "regnety_002": ({}, 64),
}

NAMES = (*TRANSFORMERS, *TIMM)


def build_training(
    name: str,
    *,
    size: str = "full",
    batch: int = 2,
    sequence: int = 128,
    dropout: bool = True,
    seed: int = 0,
    device: str = "cpu",
) -> TrainingCase:
    """Build one model in training mode. dropout=False sets every dropout and drop-path rate to zero, so that steps of
    different systems can be compared number by number. Unknown names raise KeyError listing the known ones."""
    if name not in NAMES:
        raise KeyError(f"unknown model {name!r}; known: {', '.join(NAMES)}")
    import_torchvision()
    torch.manual_seed(seed)
    make = _build_transformer if name in TRANSFORMERS else _build_timm
    with torch.device(device):
        case = make(name, size, batch, sequence if size == "full" else 16)
    case.model.train()
    if not dropout:
        without_dropout(case.model)
    return case


def _build_transformer(name: str, size: str, batch: int, sequence: int) -> TrainingCase:
    import transformers

    config_class, model_class, full, small = TRANSFORMERS[name]
    config = getattr(transformers, config_class)(**(full if size == "full" else small))
    model = getattr(transformers, model_class)(config)
    if name == "ViTForImageClassification":
        pixels = torch.randn(batch, 3, config.image_size, config.image_size)
        inputs = {"pixel_values": pixels, "labels": torch.randint(0, config.num_labels, (batch,))}
    elif name == "WhisperForConditionalGeneration":
        features = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
        inputs = {"input_features": features, "labels": torch.randint(0, config.vocab_size, (batch, sequence // 4))}
    else:
        ids = torch.randint(0, config.vocab_size, (batch, sequence))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.roll(1, 1)}
    return TrainingCase(name, model, lambda call: call(**inputs).loss)


def _build_timm(name: str, size: str, batch: int, sequence: int) -> TrainingCase:
    import timm

    small, side = TIMM[name]
    model = timm.create_model(name, pretrained=False, **(small if size == "small" else {}))
    images = torch.randn(batch, 3, *(2 * (224 if size == "full" else side,)))
    labels = torch.randint(0, 1000, (batch,))
    return TrainingCase(name, model, lambda call: torch.nn.functional.cross_entropy(call(images), labels))


# attributes of modules of transformers and timm that hold a rate which is drawn against, whatever the module's class
_RATES = (
    *("p", "drop_prob", "drop_rate", "dropout", "attention_dropout", "activation_dropout", "layerdrop"),
    "dropout_prob",
)


def without_dropout(model: torch.nn.Module) -> None:
    for module in model.modules():
        for rate in _RATES:
            if isinstance(getattr(module, rate, None), float):
                setattr(module, rate, 0.0)


def gradient_difference(actual: torch.nn.Module, expected: torch.nn.Module) -> float:
    """The largest relative difference of one parameter's gradient; inf where only one of them has a gradient.

    Relative to the largest element of that gradient, but at least to 1e-4 of the largest of all gradients: some
    gradients are zero but for rounding (of a bias before a normalisation, say), in eager as well.
    """
    pairs = [(a.grad, e.grad) for a, e in zip(actual.parameters(), expected.parameters(), strict=True)]
    if any((a is None) != (e is None) for a, e in pairs):
        return float("inf")
    present = [(a.double(), e.double()) for a, e in pairs if a is not None and e is not None]
    largest = max(e.abs().max().item() for _, e in present)
    return max(((a - e).abs().max() / e.abs().max().clamp_min(1e-4 * largest)).item() for a, e in present)
