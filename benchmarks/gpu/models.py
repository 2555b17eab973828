"""The models and systems of the GPU benchmark: inference in bfloat16, training under autocast to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.work import IMAGES, TEXT, Work, work_of

# the nine of the headline first, so that a run that ends early has those
NAMES = (
    *("bert-base", "resnet50", "gpt2", "vit_base_patch16_224", "llama-8x1024", "convnext_tiny", "t5-small"),
    *("distilbert", "mobilenetv3_large_100", "roberta-base", "albert-base", "electra-small", "opt-125m", "pythia-70m"),
    *("qwen2-8x1024", "densenet121", "swin_tiny_patch4_window7_224", "efficientnet_b0", "regnety_032"),
    *("mixer_b16_224", "poolformer_s12"),
)
assert set(NAMES) <= {*TEXT, *IMAGES}


def build_work(name: str, kind: str, batch: int, device: str, *, small: bool = False) -> Work:
    return work_of(name, kind, batch, device, torch.bfloat16, small=small)


def systems(modes: Sequence[str], peer: bool) -> list[str]:
    """eager, ours in each mode, the peer's in each mode."""
    ours = [f"stator {mode}" for mode in modes]
    return ["eager", *ours, *(f"torch.compile {mode}" for mode in modes if peer)]
