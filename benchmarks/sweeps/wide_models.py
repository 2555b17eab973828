"""The wide suite: small models of eight libraries and programs written by hand, in inference and training."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from benchmarks.models import import_torchvision

from .wide.family import FAMILIES, Built, Loop

PACKAGES = (
    "diffusers",
    "torch_geometric",
    "monai",
    "kornia",
    "gpytorch",
    "torchdiffeq",
    "x-transformers",
    "segmentation-models-pytorch",
)
_FILES = (
    "diffusion",
    "graph_networks",
    "medical",
    "vision",
    "processes",
    "sequences",
    "recommenders",
    "programs",
    "training_loops",
)


def families() -> dict[str, str]:
    """Family -> the library that its model comes from."""
    for name in _FILES:
        importlib.import_module(f"benchmarks.sweeps.wide.{name}")
    return {name: FAMILIES[name].library for name in sorted(FAMILIES)}


def columns(family: str) -> tuple[str, ...]:
    """A sampling loop has no training step, and a training loop no inference."""
    return FAMILIES[family].columns


def build(family: str, known: dict[str, Any] | None = None) -> Built | Loop:
    import_torchvision()
    families()
    torch.manual_seed(0)
    built = FAMILIES[family].build()
    built.library = FAMILIES[family].library
    if isinstance(built, Built):
        built.model.eval()
        with torch.no_grad():
            built.model(**built.inputs(0))  # lazy layers get their shapes, and what eager does not run is no family
    return built


def describe(built: Built | Loop) -> dict[str, Any]:
    return {"model": built.library, "parameters": built.parameters(), "inputs": _shapes(built.inputs(0))}


def _shapes(inputs: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (name, "×".join(map(str, value.shape)) if isinstance(value, torch.Tensor) else type(value).__name__)
        for name, value in inputs.items()
    ]
