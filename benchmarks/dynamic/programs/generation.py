"""transformers' `generate` on small models with random weights: the sizes of its caches grow with each token."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import import_torchvision

from ..program import Call, Compile, Inputs, program

_VOCABULARY = 500
_NEW = 128
_PADDING = 0
# batch, length of the prompt
_SIZES = ((2, 16), (1, 7), (4, 64), (8, 100), (1, 256), (3, 33), (1, 1))
_FEW = ((2, 6, 9), (1, 11, 9), (4, 17, 9), (3, 1, 9))
_FEW_PADDED = ((2, 6, 9), (3, 11, 9), (4, 17, 9), (2, 5, 9))


def _prompts(batch: int, length: int, new: int = _NEW) -> Inputs:
    """Rows of one length."""
    ids = torch.randint(2, _VOCABULARY, (batch, length))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": new}


def _padded_prompts(batch: int, length: int, new: int = _NEW) -> Inputs:
    """Rows of different lengths, padded on the left."""
    ids = torch.randint(2, _VOCABULARY, (batch, length))
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, : torch.randint(0, max(1, length // 2), ())] = 0
    return {"input_ids": ids.masked_fill(mask == 0, _PADDING), "attention_mask": mask, "max_new_tokens": new}


def _generate(model: Any, compile_: Compile, **how: Any) -> Call:
    """What users do: compile the forward of the model, and of its encoder, and call generate."""
    model.forward = compile_(model.forward)
    if model.config.is_encoder_decoder:
        encoder = model.get_encoder()
        encoder.forward = compile_(encoder.forward)
    config = model.generation_config
    config.pad_token_id, config.eos_token_id, config.bos_token_id = _PADDING, None, 1

    def call(inputs: Inputs) -> Tensor:
        torch.manual_seed(0)
        return model.generate(**inputs, **how)

    return call


_generation = partial(
    program,
    inputs=_prompts,
    sizes=_SIZES,
    few=_FEW,
    modes=("inference",),
    alone=False,
    compilations=2,  # prompts, and the next token
    unit=lambda size: size[0] * (size[2] if len(size) > 2 else _NEW),
)


def _gpt2() -> nn.Module:
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=_VOCABULARY, n_positions=512))


def _llama() -> nn.Module:
    import_torchvision()
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            vocab_size=_VOCABULARY,
        )
    )


# prompts with a mask, without, and the next token of each
_padded = partial(_generation, inputs=_padded_prompts, few=_FEW_PADDED, compilations=4)


@_generation(attach=partial(_generate, do_sample=False))
def gpt2_greedy() -> nn.Module:
    return _gpt2()


@_padded(attach=partial(_generate, do_sample=True, top_k=20))
def gpt2_sampling() -> nn.Module:
    return _gpt2()


@_padded(attach=partial(_generate, do_sample=False, num_beams=3))
def gpt2_beams() -> nn.Module:
    return _gpt2()


@_generation(attach=partial(_generate, do_sample=False))
def llama_greedy() -> nn.Module:
    return _llama()


@_padded(attach=partial(_generate, do_sample=False))
def llama_padded() -> nn.Module:
    return _llama()


_FEW_OF_BOTH = (*_FEW_PADDED, (1, 11, 9), (1, 1, 9), (5, 40, 9))


# one row has no padding: the next token has one version all the same, because generate makes its mask
@_padded(attach=partial(_generate, do_sample=False, cache_implementation="static"), few=_FEW_OF_BOTH, compilations=3)
def llama_static_cache() -> nn.Module:
    return _llama()


def _mistral() -> nn.Module:
    """The cache of a window of 24 tokens is full after some steps."""
    import_torchvision()
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(
        MistralConfig(
            num_hidden_layers=2,
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=128,
            vocab_size=_VOCABULARY,
            sliding_window=24,
        )
    )


_WINDOWED = ((2, 16), (1, 7), (4, 64), (1, 200))


@_padded(attach=partial(_generate, do_sample=False), sizes=_WINDOWED, compilations=5)
def mistral_sliding_window() -> nn.Module:
    return _mistral()


# prompts within the window and beyond it; the next token while the window has room, and when it is full
@_padded(
    attach=partial(_generate, do_sample=False, cache_implementation="static"),
    sizes=_WINDOWED,
    few=((2, 6, 9), (3, 11, 20), (2, 1, 30), (1, 11, 9), (1, 1, 9), (5, 40, 9)),
    compilations=4,
)
def mistral_static_cache() -> nn.Module:
    return _mistral()


# two of the decoder (the first token and the next), and three of the encoder: the first prompt, others, prompts of one
# token
@_padded(
    attach=partial(_generate, do_sample=False),
    few=((2, 6, 9), (1, 11, 9), (3, 17, 9), (1, 1, 9), (2, 1, 5)),
    compilations=5,
)
def t5_greedy() -> nn.Module:
    import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            num_layers=2, d_model=64, d_kv=16, d_ff=128, num_heads=4, vocab_size=_VOCABULARY, decoder_start_token_id=0
        )
    )


def _sounds(batch: int, new: int = _NEW) -> Inputs:
    return {"input_features": torch.randn(batch, 16, 200), "max_new_tokens": new}


@program(
    inputs=_sounds,
    sizes=((2,), (1,), (4,), (8,)),
    few=((2, 6), (3, 9), (1, 5), (4, 12)),
    modes=("inference",),
    alone=False,
    compilations=4,  # two of the decoder: the first token, and the next
    attach=partial(_generate, do_sample=False),
    unit=lambda size: size[0] * (size[1] if len(size) > 1 else _NEW),
)
def whisper_greedy() -> nn.Module:
    import_torchvision()
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=_VOCABULARY,
            num_mel_bins=16,
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            max_source_positions=100,
            max_target_positions=256,
            decoder_start_token_id=1,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    )
