"""Models of diffusers: denoising networks, autoencoders, and a loop over a scheduler's steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from .family import INFERENCE, Built, Loop, family


@family("diffusers")
def unet_2d() -> Built:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
    )
    return Built(model, lambda: {"sample": torch.randn(2, 3, 32, 32), "timestep": torch.tensor([3, 70])})


def _condition() -> dict[str, Any]:
    return dict(
        block_out_channels=(32, 64),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    )


def _condition_inputs() -> dict[str, Any]:
    return {
        "sample": torch.randn(2, 4, 32, 32),
        "timestep": torch.tensor([3, 70]),
        "encoder_hidden_states": torch.randn(2, 16, 32),
    }


@family("diffusers")
def unet_2d_condition() -> Built:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(sample_size=32, up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), **_condition())
    return Built(model, _condition_inputs)


@family("diffusers")
def controlnet() -> Built:
    from diffusers import ControlNetModel

    model = ControlNetModel(conditioning_embedding_out_channels=(16, 32), **_condition())
    for module in (*model.controlnet_down_blocks, model.controlnet_mid_block):
        torch.nn.init.normal_(module.weight, 0, 0.02)  # zeros as they begin would hide mistakes
    return Built(model, lambda: {**_condition_inputs(), "controlnet_cond": torch.randn(2, 3, 64, 64)})


@family("diffusers")
def unet_1d() -> Built:
    from diffusers import UNet1DModel

    model = UNet1DModel(
        block_out_channels=(32, 64),
        extra_in_channels=64,
        down_block_types=("DownBlock1DNoSkip", "AttnDownBlock1D"),
        up_block_types=("AttnUpBlock1D", "UpBlock1DNoSkip"),
    )
    return Built(model, lambda: {"sample": torch.randn(2, 2, 256), "timestep": torch.tensor([3, 70])})


@family("diffusers")
def autoencoder_kl() -> Built:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(32, 64),
        norm_num_groups=8,
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    return Built(model, lambda: {"sample": torch.randn(2, 3, 64, 64)})


@family("diffusers")
def vq_model() -> Built:
    from diffusers import VQModel

    model = VQModel(
        block_out_channels=(32, 64),
        norm_num_groups=8,
        num_vq_embeddings=64,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    torch.nn.init.normal_(model.quantize.embedding.weight)  # far apart, so that rounding does not choose another code
    return Built(model, lambda: {"sample": torch.randn(2, 3, 64, 64)})


@family("diffusers")
def dit_transformer() -> Built:
    from diffusers import DiTTransformer2DModel

    model = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=16, num_layers=3, sample_size=16, norm_num_groups=8
    )
    return Built(
        model,
        lambda: {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "timestep": torch.tensor([3, 70]),
            "class_labels": torch.tensor([1, 5]),
        },
    )


@family("diffusers")
def pixart_transformer() -> Built:
    from diffusers import PixArtTransformer2DModel

    model = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        cross_attention_dim=64,
        caption_channels=32,
        num_layers=3,
        sample_size=16,
        norm_num_groups=8,
        use_additional_conditions=False,
    )
    return Built(
        model,
        lambda: {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "encoder_hidden_states": torch.randn(2, 12, 32),
            "timestep": torch.tensor([3, 70]),
        },
    )


@family("diffusers")
def sd3_transformer() -> Built:
    from diffusers import SD3Transformer2DModel

    model = SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        num_layers=3,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        caption_projection_dim=64,
        pooled_projection_dim=32,
        out_channels=4,
        pos_embed_max_size=16,
    )
    return Built(
        model,
        lambda: {
            "hidden_states": torch.randn(2, 4, 16, 16),
            "encoder_hidden_states": torch.randn(2, 12, 32),
            "pooled_projections": torch.randn(2, 32),
            "timestep": torch.tensor([3.0, 70.0]),
        },
    )


@family("diffusers")
def flux_transformer() -> Built:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        axes_dims_rope=(4, 6, 6),
    )
    return Built(
        model,
        lambda: {
            "hidden_states": torch.randn(2, 64, 16),
            "encoder_hidden_states": torch.randn(2, 12, 32),
            "pooled_projections": torch.randn(2, 32),
            "timestep": torch.tensor([0.3, 0.7]),
            "img_ids": torch.cartesian_prod(torch.zeros(1), torch.arange(8.0), torch.arange(8.0)),
            "txt_ids": torch.zeros(12, 3),
        },
    )


@family("diffusers", INFERENCE)
def ddim_sampling() -> Loop:
    """Six steps of a scheduler around a compiled network, as pipelines have them."""
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(6)

    @torch.no_grad()
    def step(networks: SimpleNamespace, optimizers: list[Any], sample: torch.Tensor) -> torch.Tensor:
        for time in scheduler.timesteps:
            noise = networks.denoiser(sample, time).sample
            sample = scheduler.step(noise, time, sample).prev_sample
        return sample

    network = unet_2d().model.eval()
    return Loop({"denoiser": network}, lambda networks: [], step, lambda: {"sample": torch.randn(2, 3, 32, 32)})
