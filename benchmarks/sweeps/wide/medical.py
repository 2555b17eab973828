"""Networks of MONAI on small volumes."""

from __future__ import annotations

import torch

from .family import Built, Inputs, family


def _volume() -> Inputs:
    return lambda: {"x": torch.randn(1, 1, 32, 32, 32)}


class _Positional(torch.nn.Module):
    """The forwards of MONAI's networks call their input x, x_in or inputs."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)


@family("monai")
def monai_unet() -> Built:
    from monai.networks.nets import UNet

    model = UNet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2), num_res_units=2)
    return Built(model, _volume())


@family("monai")
def monai_attention_unet() -> Built:
    from monai.networks.nets import AttentionUnet

    return Built(AttentionUnet(3, 1, 2, channels=(8, 16, 32), strides=(2, 2)), _volume())


@family("monai")
def dyn_unet() -> Built:
    from monai.networks.nets import DynUNet

    model = DynUNet(3, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[8, 16, 32], res_block=True)
    return Built(model, _volume())


@family("monai")
def seg_res_net() -> Built:
    from monai.networks.nets import SegResNet

    return Built(SegResNet(3, 8, 1, 2, blocks_down=(1, 2, 2), blocks_up=(1, 1), dropout_prob=0.2), _volume())


@family("monai")
def monai_vit() -> Built:
    from monai.networks.nets import ViT

    model = ViT(1, (32, 32, 32), (8, 8, 8), hidden_size=96, mlp_dim=192, num_layers=3, num_heads=4, classification=True)
    return Built(model, _volume())


@family("monai")
def unetr() -> Built:
    from monai.networks.nets import UNETR

    model = UNETR(1, 2, (32, 32, 32), feature_size=8, hidden_size=96, mlp_dim=192, num_heads=4)
    return Built(_Positional(model), _volume())


@family("monai")
def swin_unetr() -> Built:
    from monai.networks.nets import SwinUNETR

    model = SwinUNETR(1, 2, patch_size=2, feature_size=12, depths=(1, 1, 1, 1))
    return Built(_Positional(model), lambda: {"x": torch.randn(1, 1, 64, 32, 32)})


@family("monai")
def v_net() -> Built:
    from monai.networks.nets import VNet

    return Built(_Positional(VNet(3, 1, 2)), lambda: {"x": torch.randn(1, 1, 32, 16, 16)})


@family("monai")
def monai_densenet() -> Built:
    from monai.networks.nets import DenseNet

    return Built(DenseNet(3, 1, 4, init_features=16, growth_rate=8, block_config=(2, 2, 2)), _volume())
