"""Every family (module) of timm as its smallest model, with random weights, mostly at the input size it is made for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import import_torchvision

CHOSEN = Path(__file__).parent / "timm_smallest.json"
_LARGEST_IMAGE, _USUAL_IMAGE = 288, 224
_CANDIDATES = 4
_SMALL = (
    "atto",
    "femto",
    "pico",
    "zepto",
    "nano",
    "xxs",
    "t0",
    "b0",
    "s0",
    "m0",
    "xxtiny",
    "xtiny",
    "micro",
    "mini",
    "xs",
    "tiny",
    "t1",
    "b1",
    "s1",
    "050",
    "lite0",
    "small",
    "s",
    "18",
    "d0",
    "l0",
    "a0",
)


@dataclass(slots=True)
class Built:
    """One family's model in eval mode, and images of the same size with other values for each seed."""

    model: torch.nn.Module
    name: str
    size: tuple[int, ...]

    def inputs(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        return {"x": torch.randn(2 if self.size[-1] <= _LARGEST_IMAGE else 1, *self.size)}

    def other_sizes(self) -> Iterator[list[dict[str, Any]]]:
        """Calls with other batches, at first also with larger images, which many models refuse."""
        for growth in (32, 0):
            torch.manual_seed(1)
            yield [{"x": torch.randn(rows, *self._larger(rows * growth // 3))} for rows in (3, 6)]

    def _larger(self, pixels: int) -> tuple[int, ...]:
        return (self.size[0], *[side + pixels for side in self.size[1:]])


def families() -> dict[str, str]:
    """Module of timm -> its smallest model; chosen by `choose`."""
    return json.loads(CHOSEN.read_text())


def build(family: str, known: dict[str, Any] | None = None) -> Built:
    import_torchvision()
    torch.manual_seed(0)
    name = families()[family]
    model, size = _made(name)
    model.eval()
    for module in model.modules():  # freshly made statistics (0 and 1) would hide mistakes in normalisation
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return Built(model, name, size)


def _made(name: str) -> tuple[torch.nn.Module, tuple[int, ...]]:
    """The model and the size of its images: not the large ones that it is made for, if it can be made for others."""
    import timm

    if _image(name) > _LARGEST_IMAGE:
        try:
            model = timm.create_model(name, pretrained=False, img_size=_USUAL_IMAGE)
            return model, (model.default_cfg["input_size"][0], _USUAL_IMAGE, _USUAL_IMAGE)
        except TypeError:  # it takes no such option
            pass
    model = timm.create_model(name, pretrained=False)
    return model, tuple(model.default_cfg["input_size"])


def describe(built: Built) -> dict[str, Any]:
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    return {"model": built.name, "parameters": parameters, "size": built.size}


def choose() -> dict[str, str]:
    """The model of each module with the fewest parameters (counted without making data), of those whose images are
    small and whose names promise a small model."""
    import_torchvision()
    import timm

    found: dict[str, str] = {}
    for family in timm.list_modules():
        names = [name for name in timm.list_models(module=family) if not name.startswith("test_")]
        names = [name for name in names if _image(name) <= _LARGEST_IMAGE] or names
        names.sort(key=_promise)
        sizes: list[tuple[int, str]] = []
        for name in names if len(names) <= 2 * _CANDIDATES else names[:_CANDIDATES]:
            try:
                with torch.device("meta"):
                    model = timm.create_model(name, pretrained=False)
                sizes.append((sum(p.numel() for p in model.parameters()), name))
            except Exception as error:
                print(
                    f"{family}: {name} cannot be made without data: {type(error).__name__}: {error}"[:160], flush=True
                )
        found[family] = min(sizes)[1] if sizes else names[0]
        print(family, found[family], flush=True)
    CHOSEN.write_text(json.dumps(found, indent=1) + "\n")
    return found


def _image(name: str) -> int:
    """The side of the images that a model is made for."""
    from timm.models import get_pretrained_cfg

    cfg = get_pretrained_cfg(name, allow_unregistered=False)
    return cfg.input_size[-1] if cfg else 224


def _promise(name: str) -> tuple[int, int, str]:
    """Sorts names of models by how small a model they promise."""
    words = name.split("_")
    found = [rank for rank, word in enumerate(_SMALL) if any(part.startswith(word) for part in words)]
    depth = re.search(r"[a-z](\d+)", name)
    return min(found, default=len(_SMALL)), int(depth[1]) if depth else 0, name


if __name__ == "__main__":
    choose()
