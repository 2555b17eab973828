"""Networks on images of varying sizes: classifiers, a U-Net, a diffusion model's network."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.models import import_torchvision

from ..program import Inputs, program

# batch, height, width
_SIZES = ((4, 96, 96), (4, 128, 96), (4, 160, 160), (2, 64, 192), (4, 112, 80))
_FEW = ((2, 32, 48), (2, 40, 40), (3, 64, 32), (2, 56, 72))


def _images(batch: int, height: int, width: int) -> Inputs:
    return {"x": torch.randn(batch, 3, height, width)}


def _with_statistics(model: nn.Module) -> nn.Module:
    """Freshly made statistics (0 and 1) would hide mistakes in normalisation."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model


@program(inputs=_images, sizes=_SIZES, few=_FEW)
def resnet() -> nn.Module:
    import_torchvision()
    import timm

    return _with_statistics(timm.create_model("resnet10t", pretrained=False))


@program(inputs=_images, sizes=_SIZES, few=((2, 32, 48), (2, 48, 48), (3, 64, 32), (2, 96, 64)))
def vision_transformer() -> nn.Module:
    """Interpolates the embedding of positions to the image's size."""
    import_torchvision()
    import timm

    return timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, depth=2, img_size=96, dynamic_img_size=True, num_classes=10
    )


def _block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Its way up is resized to the features beside it, because odd sizes are halved downwards."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(_block(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.middle = _block(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            _block(a + b, b) for a, b in zip([widths[-1], *widths[:0:-1]], widths[::-1], strict=True)
        )
        self.head = nn.Conv2d(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for block, beside in zip(self.up, reversed(kept), strict=True):
            x = F.interpolate(x, size=beside.shape[-2:], mode="bilinear", align_corners=False)
            x = block(torch.cat([x, beside], 1))
        return self.head(x)


@program(
    inputs=_images,
    sizes=((2, 64, 64), (2, 96, 65), (2, 128, 96), (1, 77, 128), (4, 48, 80)),
    few=((2, 16, 24), (2, 20, 17), (3, 32, 16), (2, 28, 36)),
)
def unet() -> nn.Module:
    return _with_statistics(UNet())


class Residual(nn.Module):
    """A block of a diffusion model: shifted by the embedding of the time."""

    def __init__(self, inside: int, outside: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1))
        self.shift = nn.Linear(time, outside)
        self.second = nn.Sequential(nn.GroupNorm(8, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1))
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x) + self.shift(F.silu(time))[:, :, None, None])


class Attention(nn.Module):
    """Attention among all pixels."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, across = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .reshape(batch, 3, self.heads, width // self.heads, height * across)
            .transpose(-1, -2)
            .unbind(1)
        )
        seen = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(seen.reshape(batch, width, height, across))


class DiffusionNetwork(nn.Module):
    """Predicts the noise in an image at a time."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.width = width
        time = 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = Residual(width, width, time)
        self.smaller = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = nn.ModuleList([Residual(2 * width, 2 * width, time), Residual(2 * width, 2 * width, time)])
        self.attention = Attention(2 * width)
        self.larger = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = Residual(2 * width, width, time)
        self.leave = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        half = self.width // 2
        angles = time[:, None] * torch.exp(torch.arange(half, device=x.device) * (-math.log(10000) / half))
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        kept = self.down(self.enter(x), embedded)
        low = self.low[0](self.smaller(kept), embedded)
        low = self.low[1](self.attention(low), embedded)
        x = self.larger(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.leave(self.up(torch.cat([x, kept], 1), embedded))


def _noisy(batch: int, height: int, width: int) -> Inputs:
    return {"x": torch.randn(batch, 4, height, width), "time": torch.rand(batch) * 1000}


@program(
    inputs=_noisy,
    sizes=((2, 32, 32), (2, 48, 32), (2, 40, 64), (1, 64, 64), (4, 24, 32)),
    few=((2, 8, 12), (2, 12, 8), (3, 16, 16)),
)
def diffusion_unet() -> nn.Module:
    return DiffusionNetwork()
