"""Language models on batches that are padded to their longest row, with a smaller last batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models import import_torchvision

from ..program import Inputs, program

_VOCABULARY = 500
# rows, length of the longest; the last batch of an epoch has fewer rows
_SIZES = ((8, 64), (8, 51), (8, 96), (8, 128), (8, 37), (8, 120), (3, 77))
_FEW = ((4, 12), (4, 9), (4, 17), (3, 14))


def _padded(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Rows of different lengths, padded on the right."""
    lengths = torch.randint(max(1, length // 2), length + 1, (batch, 1))
    lengths[0] = length
    mask = (torch.arange(length) < lengths).long()
    return torch.randint(2, _VOCABULARY, (batch, length)) * mask, mask


def _with_labels(batch: int, length: int) -> Inputs:
    ids, mask = _padded(batch, length)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@program(inputs=_with_labels, sizes=_SIZES, few=_FEW)
def bert() -> nn.Module:
    import_torchvision()
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            num_hidden_layers=2,
            hidden_size=128,
            num_attention_heads=4,
            intermediate_size=256,
            vocab_size=_VOCABULARY,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


@program(inputs=_with_labels, sizes=_SIZES, few=_FEW)
def gpt2() -> nn.Module:
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_layer=2, n_embd=128, n_head=4, vocab_size=_VOCABULARY, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
        )
    )


def _pairs(batch: int, length: int, target: int) -> Inputs:
    ids, mask = _padded(batch, length)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(2, _VOCABULARY, (batch, target))}


@program(
    inputs=_pairs,
    sizes=((8, 64, 32), (8, 51, 40), (8, 96, 64), (8, 37, 37), (3, 77, 20)),
    few=((4, 12, 7), (4, 9, 11), (3, 17, 5)),
)
def t5() -> nn.Module:
    import_torchvision()
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            num_layers=2,
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_heads=4,
            vocab_size=_VOCABULARY,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )
