"""A detector: a feature pyramid, heads, and a choice of boxes whose number depends on the image's content."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..program import program


def _convolution(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


def overlaps(boxes: Tensor) -> Tensor:
    """Intersection over union of all pairs of (left, top, right, bottom)."""
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)
    return common / (area[:, None] + area[None] - common).clamp(min=1e-6)


class Detector(nn.Module):
    """Gives boxes, scores and classes of what it finds in one image."""

    def __init__(self, width: int = 32, classes: int = 5, most: int = 100) -> None:
        super().__init__()
        self.most, self.strides = most, (4, 8, 16)
        self.stem = nn.Sequential(_convolution(3, width // 2, 2), _convolution(width // 2, width, 2))
        self.stages = nn.ModuleList([_convolution(width, width, 2), _convolution(width, width, 2)])
        self.lateral = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in self.strides)
        self.smooth = nn.ModuleList(_convolution(width, width) for _ in self.strides)
        self.classify = nn.Sequential(_convolution(width, width), nn.Conv2d(width, classes, 3, padding=1))
        self.regress = nn.Sequential(_convolution(width, width), nn.Conv2d(width, 4, 3, padding=1))

    def pyramid(self, image: Tensor) -> list[Tensor]:
        features = [self.stem(image)]
        for stage in self.stages:
            features.append(stage(features[-1]))
        above = None
        levels = []
        for lateral, smooth, one in reversed(list(zip(self.lateral, self.smooth, features, strict=True))):
            here = lateral(one)
            if above is not None:
                here = here + F.interpolate(above, size=here.shape[-2:], mode="nearest")
            above = here
            levels.insert(0, smooth(here))
        return levels

    def boxes(self, sizes: Tensor, stride: int) -> Tensor:
        """Distances to the four sides of a box around each cell's middle, as (left, top, right, bottom)."""
        height, width = sizes.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        middle = (torch.stack([x, y], -1).reshape(-1, 2) + 0.5) * stride
        sides = sizes[0].flatten(1).t().exp() * stride
        return torch.cat([middle - sides[:, :2], middle + sides[:, 2:]], 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        boxes, scores, kinds = [], [], []
        for level, stride in zip(self.pyramid(image), self.strides, strict=True):
            score, kind = self.classify(level)[0].flatten(1).t().sigmoid().max(1)
            best, where = score.topk(min(self.most, score.shape[0]))
            boxes.append(self.boxes(self.regress(level), stride)[where])
            scores.append(best)
            kinds.append(kind[where])
        score, kind, box = torch.cat(scores), torch.cat(kinds), torch.cat(boxes)
        found = score > score.mean()
        score, kind, box = score[found], kind[found], box[found]
        order = score.argsort(descending=True)
        score, kind, box = score[order], kind[order], box[order]
        other = (kind[:, None] != kind[None]).float() * 1e4  # boxes of different classes never overlap
        worst = (overlaps(box) - other).triu(1).amax(0)
        kept = worst < 0.5
        return box[kept], score[kept], kind[kept]


@program(
    inputs=lambda height, width: {"image": torch.randn(1, 3, height, width)},
    sizes=((128, 128), (160, 128), (192, 256), (97, 143), (224, 160)),
    few=((48, 64), (64, 64), (50, 70), (96, 48)),
    modes=("inference",),
)
def detector() -> nn.Module:
    return Detector()
