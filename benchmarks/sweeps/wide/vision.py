"""Image operations and feature networks of kornia, and segmentation networks of segmentation_models_pytorch."""

from __future__ import annotations

from typing import Any

import torch

from .family import INFERENCE, Built, Inputs, family


def _image(side: int = 64, channels: int = 3) -> Inputs:
    return lambda: {"x": torch.rand(2, channels, side, side)}


@family("kornia", INFERENCE)
def augmentation() -> Built:
    import kornia.augmentation as K

    model = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomAffine(20.0, scale=(0.8, 1.2), p=1.0),
        K.ColorJitter(0.2, 0.2, 0.2, 0.1, p=1.0),
        K.RandomGaussianBlur((3, 3), (0.1, 2.0), p=0.5),
        data_keys=["input"],
    )

    class Pipeline(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.steps(x)

    return Built(Pipeline(), _image())


@family("kornia")
def filters() -> Built:
    from kornia import filters as F

    class Filters(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            smooth = F.gaussian_blur2d(x, (5, 5), (1.2, 1.2))
            return [F.sobel(smooth), F.laplacian(x, 3), F.median_blur(x, 3), F.unsharp_mask(x, (3, 3), (1.0, 1.0))]

    return Built(Filters(), lambda: {"x": torch.rand(2, 3, 64, 64).requires_grad_()})


@family("kornia", INFERENCE)
def canny_edges() -> Built:
    from kornia.filters import Canny

    class Edges(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.canny = Canny(hysteresis=False)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.canny(x)

    return Built(Edges(), _image(channels=1))


@family("kornia")
def colours_and_warps() -> Built:
    import kornia

    class Colours(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.homography = torch.nn.Parameter(torch.eye(3) + 0.01 * torch.randn(3, 3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            lab, hsv = kornia.color.rgb_to_lab(x), kornia.color.rgb_to_hsv(x)
            warped = kornia.geometry.transform.warp_perspective(x, self.homography.expand(2, 3, 3), (64, 64))
            return lab, hsv, warped

    return Built(Colours(), _image())


@family("kornia")
def patch_descriptor() -> Built:
    from kornia.feature import HardNet

    class Descriptor(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = HardNet(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)

    return Built(Descriptor(), lambda: {"x": torch.rand(4, 1, 32, 32)})


@family("kornia", INFERENCE)
def keypoints() -> Built:
    from kornia.feature.xfeat import XFeatModel

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = XFeatModel()

        def forward(self, x: torch.Tensor) -> Any:
            return self.network(x)

    return Built(Dense(), _image(128))


@family("kornia")
def ssim_and_total_variation() -> Built:
    from kornia.losses import SSIMLoss, TotalVariation

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Sequential(
                torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 3, 3, padding=1)
            )
            self.similarity, self.variation = SSIMLoss(5), TotalVariation()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.network(x)
            return self.similarity(made, x) + 1e-4 * self.variation(made).mean()

    return Built(Loss(), _image())


def _segmentation(name: str, batch: int = 2, **options: Any) -> Built:
    import segmentation_models_pytorch

    class Segmentation(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            network = getattr(segmentation_models_pytorch, name)
            self.network = network(options.pop("encoder", "resnet18"), encoder_weights=None, classes=3, **options)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)

    return Built(Segmentation(), lambda: {"x": torch.rand(batch, 3, 64, 64)})


@family("segmentation_models_pytorch")
def smp_unet() -> Built:
    return _segmentation("Unet", decoder_channels=(64, 32, 16, 16, 8))


@family("segmentation_models_pytorch")
def smp_unet_plus_plus() -> Built:
    return _segmentation("UnetPlusPlus", decoder_channels=(64, 32, 16, 16, 8), encoder="timm-mobilenetv3_small_100")


@family("segmentation_models_pytorch")
def smp_fpn() -> Built:
    return _segmentation("FPN", decoder_pyramid_channels=64, decoder_segmentation_channels=32)


@family("segmentation_models_pytorch")
def smp_deep_lab_v3_plus() -> Built:
    """Batch normalisation of pooled images needs several: the gradients of two are rounding."""
    return _segmentation("DeepLabV3Plus", 6, decoder_channels=64, encoder="mobilenet_v2")


@family("segmentation_models_pytorch")
def smp_linknet() -> Built:
    return _segmentation("Linknet")


@family("segmentation_models_pytorch")
def smp_pspnet() -> Built:
    return _segmentation("PSPNet", psp_out_channels=64)


@family("segmentation_models_pytorch")
def smp_segformer() -> Built:
    return _segmentation("Segformer", encoder="mit_b0", decoder_segmentation_channels=64)


@family("segmentation_models_pytorch")
def smp_manet() -> Built:
    return _segmentation("MAnet", decoder_channels=(64, 32, 16, 16, 8), encoder="efficientnet-b0")
