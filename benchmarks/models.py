"""The eleven models of the headline table, built unmodified from transformers and timm with random weights.

Each builder returns the module and the keyword or positional arguments of one call. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """One model with its inputs. `size` is "full" (published size) or "small" (few layers, for tests)."""

    name: str
    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# config class, model class, and what differs from the defaults: first at full size, then in small
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "BertForMaskedLM": (
        "BertConfig",
        "BertForMaskedLM",
        {},
        dict(num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128, vocab_size=500),
    ),
    "GPT2LMHeadModel": (
        "GPT2Config",
        "GPT2LMHeadModel",
        {},
        dict(n_layer=2, n_embd=64, n_head=4, vocab_size=500),
    ),
    "DistilBertForMaskedLM": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {},
        dict(n_layers=2, dim=64, n_heads=4, hidden_dim=128, vocab_size=500),
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        "T5ForConditionalGeneration",
        {},
        dict(num_layers=2, d_model=64, d_kv=16, d_ff=128, num_heads=4, vocab_size=500),
    ),
    "LlamaForCausalLM": (
        "LlamaConfig",
        "LlamaForCausalLM",
        dict(
            num_hidden_layers=8,
            hidden_size=768,
            num_attention_heads=12,
            num_key_value_heads=4,
            intermediate_size=2048,
            vocab_size=32000,
        ),
        dict(
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            vocab_size=500,
        ),
    ),
}

# what differs from the defaults in small, and the small image size
TIMM: dict[str, tuple[dict[str, Any], int]] = {
    "resnet50": (dict(layers=(1, 1, 1, 1)), 64),
    "mobilenetv3_large_100": ({}, 64),
    "vit_base_patch16_224": (dict(depth=2, embed_dim=64, num_heads=4, img_size=32), 32),
    "convnext_tiny": (dict(depths=(1, 1, 1, 1), dims=(16, 32, 64, 64)), 64),
    "densenet121": (dict(block_config=(2, 2, 2, 2)), 64),
    "swin_tiny_patch4_window7_224": (dict(depths=(1, 2, 1, 1), embed_dim=24, num_heads=(1, 2, 4, 8)), 224),
}

NAMES = (*TRANSFORMERS, *TIMM)


def import_torchvision() -> None:
    """Import torchvision, which transformers and timm reach for, also where its compiled operators do not load."""
    if "torchvision" not in sys.modules:
        try:
            importlib.import_module("torchvision")
        except RuntimeError:  # "operator torchvision::nms does not exist"
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]
            library = torch.library.Library("torchvision", "DEF")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            importlib.import_module("torchvision")
            import_torchvision.library = library  # type: ignore[attr-defined]  # the definitions live as long as this object


def build(
    name: str, *, size: str = "full", batch: int = 1, sequence: int = 128, seed: int = 0, device: str = "cpu"
) -> Case:
    """Build one model in eval mode with its inputs. Unknown names raise KeyError listing the known ones."""
    builders: dict[str, Callable[..., Case]] = {
        **dict.fromkeys(TRANSFORMERS, _build_transformer),
        **dict.fromkeys(TIMM, _build_timm),
    }
    if name not in builders:
        raise KeyError(f"unknown model {name!r}; known: {', '.join(NAMES)}")
    torch.manual_seed(seed)
    with torch.device(device):
        return builders[name](name, size=size, batch=batch, sequence=sequence)


def _build_transformer(name: str, *, size: str, batch: int, sequence: int) -> Case:
    config_class, model_class, full, small = TRANSFORMERS[name]
    if size == "full":
        return text_case(name, config_class, model_class, full, batch, sequence)
    return text_case(name, config_class, model_class, small, batch, 16)


def text_case(
    name: str, config_class: str, model_class: str, settings: dict[str, Any], batch: int, sequence: int
) -> Case:
    """A model of transformers that takes token ids, by the names of its classes."""
    import_torchvision()
    import transformers

    config = getattr(transformers, config_class)(**settings)
    model = getattr(transformers, model_class)(config).eval()
    ids = torch.randint(0, config.vocab_size, (batch, sequence))
    kwargs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model_class == "T5ForConditionalGeneration":
        kwargs["decoder_input_ids"] = ids.clone()
    return Case(name, model, (), kwargs)


def _build_timm(name: str, *, size: str, batch: int, sequence: int) -> Case:
    settings, side = TIMM[name] if size == "small" else ({}, 224)
    return image_case(name, batch, settings, side)


def image_case(name: str, batch: int, settings: dict[str, Any] | None = None, side: int = 224) -> Case:
    """A model of timm for images of `side` by `side`."""
    import_torchvision()
    import timm

    model = timm.create_model(name, pretrained=False, **(settings or {})).eval()
    for module in model.modules():  # freshly made statistics (0 and 1) would hide mistakes in normalisation
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return Case(name, model, (torch.randn(batch, 3, side, side),), {})


def tensors_of(output: Any) -> list[torch.Tensor]:
    """All tensors in a model's output, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(_plain(output)) if isinstance(leaf, torch.Tensor)]


def _plain(output: Any) -> Any:
    """ModelOutput and cache objects as plain containers."""
    if hasattr(output, "to_tuple"):
        return [_plain(item) for item in output.to_tuple()]
    if isinstance(output, list | tuple):
        return [_plain(item) for item in output]
    if hasattr(output, "layers") and not isinstance(output, torch.nn.Module):  # a key-value cache
        return [[getattr(layer, "keys", None), getattr(layer, "values", None)] for layer in output.layers]
    return output


def relative_error(actual: Any, expected: Any) -> float:
    """The largest ‖actual - expected‖ / ‖expected‖ of floating-point tensors of two outputs, in float64; inf if their
    structure or another tensor differs, or if one has a NaN."""
    pairs = tensors_of(actual), tensors_of(expected)
    if [t.shape for t in pairs[0]] != [t.shape for t in pairs[1]] or not pairs[0]:
        return float("inf")
    worst = 0.0
    for a, e in zip(*pairs, strict=True):
        if not e.is_floating_point():
            worst = worst if torch.equal(a, e) else float("inf")
            continue
        error = ((a.double() - e.double()).norm() / e.double().norm().clamp_min(1e-12)).item()
        worst = max(worst, error) if error == error else float("inf")
    return worst


def largest_relative_difference(actual: Any, expected: Any) -> float:
    """max |actual - expected| / max |expected| over all tensors of two outputs; inf if their structure differs."""
    pairs = tensors_of(actual), tensors_of(expected)
    if [t.shape for t in pairs[0]] != [t.shape for t in pairs[1]] or not pairs[0]:
        return float("inf")
    worst = 0.0
    for a, e in zip(*pairs, strict=True):
        if not torch.equal(a.isnan(), e.isnan()):
            return float("inf")
        scale = max(e.double().abs().max().item(), 1e-12)
        worst = max(worst, (a.double() - e.double()).abs().max().item() / scale)
    return worst
