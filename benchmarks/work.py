"""Models of text and images with random weights, and the steps that the benchmarks of GPUs and CPUs measure of them:
inference in one dtype, training under autocast to it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import TRANSFORMERS, Case, image_case, text_case
from benchmarks.training_models import without_dropout

SEQUENCE = 128
_LLAMA = dict(num_hidden_layers=8, hidden_size=1024, num_attention_heads=16, num_key_value_heads=8, vocab_size=32000)
_PYTHIA = dict(num_hidden_layers=6, hidden_size=512, num_attention_heads=8, intermediate_size=2048)
_BART = dict(
    encoder_layers=6, decoder_layers=6, d_model=768, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
    encoder_attention_heads=12, decoder_attention_heads=12,
)  # fmt: skip
_GPT_NEO = dict(hidden_size=768, num_layers=12, num_heads=12, attention_types=[[["global", "local"], 6]])
_T5 = dict(num_layers=6, d_model=512, d_kv=64, d_ff=2048, num_heads=8, decoder_start_token_id=0)

# names of the configuration and of the model, and what differs from the defaults
TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert-base": (*TRANSFORMERS["BertForMaskedLM"][:2], {}),
    "gpt2": (*TRANSFORMERS["GPT2LMHeadModel"][:2], {}),
    "distilbert": (*TRANSFORMERS["DistilBertForMaskedLM"][:2], {}),
    "t5-small": (*TRANSFORMERS["T5ForConditionalGeneration"][:2], _T5),
    "llama-8x1024": ("LlamaConfig", "LlamaForCausalLM", dict(_LLAMA, intermediate_size=2816)),
    "roberta-base": ("RobertaConfig", "RobertaForMaskedLM", {}),
    "albert-base": (
        "AlbertConfig",
        "AlbertForMaskedLM",
        dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    ),
    "electra-small": ("ElectraConfig", "ElectraForMaskedLM", {}),
    "opt-125m": ("OPTConfig", "OPTForCausalLM", {}),
    "pythia-70m": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _PYTHIA),
    "qwen2-8x1024": ("Qwen2Config", "Qwen2ForCausalLM", dict(_LLAMA, intermediate_size=2816)),
    "llama-8x768": TRANSFORMERS["LlamaForCausalLM"][:3],
    "bart-base": ("BartConfig", "BartForConditionalGeneration", _BART),
    "bloom-8x768": ("BloomConfig", "BloomForCausalLM", dict(n_layer=8, hidden_size=768, n_head=12, vocab_size=32000)),
    "gpt-neo-125m": ("GPTNeoConfig", "GPTNeoForCausalLM", _GPT_NEO),
    "mobilebert": ("MobileBertConfig", "MobileBertForMaskedLM", {}),
    "mpnet-base": ("MPNetConfig", "MPNetForMaskedLM", {}),
    "squeezebert": ("SqueezeBertConfig", "SqueezeBertForMaskedLM", {}),
}
IMAGES = (
    "resnet50",
    "mobilenetv3_large_100",
    "vit_base_patch16_224",
    "convnext_tiny",
    "densenet121",
    "swin_tiny_patch4_window7_224",
    "efficientnet_b0",
    "regnety_032",
    "mixer_b16_224",
    "poolformer_s12",
    "deit_small_patch16_224",
    "ghostnet_100",
    "inception_v3",
    "levit_128",
    "mobilenetv2_100",
    "pvt_v2_b0",
    "regnety_002",
    "res2net50_26w_4s",
    "resnext50_32x4d",
    "rexnet_100",
)
KINDS = ("inference", "training", "adam")


def left_out() -> dict[str, str]:
    """Models that cannot be built here, and why."""
    missing = [library for library in ("timm", "torchvision") if importlib.util.find_spec(library) is None]
    reason = f"{' and '.join(missing)} not installed"
    return dict.fromkeys(IMAGES, reason) if missing else {}


@dataclass(frozen=True)
class Work:
    """A model on the device. `step(call, turn)` runs `call`, the model or its compiled form, on one of two batches.

    Inference returns the output, training the loss after its backward. `batches` are the arguments of both.
    """

    model: torch.nn.Module
    step: Callable[[Callable[..., Any], int], Any]
    batches: list[tuple[tuple[Any, ...], dict[str, Any]]]


def work_of(name: str, kind: str, batch: int, device: str, dtype: torch.dtype, *, small: bool = False) -> Work:
    """small: smaller models of text, to check the benchmark itself."""
    torch.manual_seed(0)
    with torch.device(device):
        case = _case(name, batch, small)
    return _inference(case, dtype) if kind == "inference" else _training(case, device, dtype, adam=kind == "adam")


def _case(name: str, batch: int, small: bool) -> Case:
    if name not in TEXT:
        return image_case(name, batch)
    config_class, model_class, settings = TEXT[name]
    if small and model_class in TRANSFORMERS:
        settings = dict(TRANSFORMERS[model_class][3], decoder_start_token_id=0)
    return text_case(name, config_class, model_class, settings, batch, 16 if small else SEQUENCE)


def _batches(case: Case) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The batch of the case and another one."""
    other = {key: value.roll(3, -1) if "ids" in key else value for key, value in case.kwargs.items()}
    return [(case.args, case.kwargs), (tuple(value.roll(5, -1) * 0.5 for value in case.args), other)]


def _inference(case: Case, dtype: torch.dtype) -> Work:
    batches = _batches(case)
    narrow = [(tuple(value.to(dtype) for value in args), kwargs) for args, kwargs in batches]

    def step(call: Callable[..., Any], turn: int) -> Any:
        # the reference is the model in float32, which takes inputs of its dtype
        args, kwargs = (narrow if _dtype(call, case.model) is dtype else batches)[turn]
        return call(*args, **kwargs)

    return Work(case.model.to(dtype), step, batches)


def _dtype(call: Any, model: torch.nn.Module) -> torch.dtype:
    return getattr(call, "reference_dtype", next(model.parameters()).dtype)


def _training(case: Case, device: str, dtype: torch.dtype, *, adam: bool) -> Work:
    model = case.model.train()
    without_dropout(model)
    batches, labels = _batches(case), torch.randint(0, 1000, (len(case.args[0]) if case.args else 1,), device=device)
    narrow = dtype is torch.bfloat16
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5) if adam else None

    def step(call: Callable[..., Any], turn: int) -> Any:
        args, kwargs = batches[turn]
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=narrow and not hasattr(call, "reference_dtype")):
            if case.args:
                loss = torch.nn.functional.cross_entropy(call(*args, **kwargs), labels)
            else:
                loss = call(*args, **kwargs, labels=kwargs["input_ids"]).loss
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        return loss.detach()

    return Work(model, step, batches)


def result(work: Work, call: Callable[..., Any], turn: int, training: bool) -> Any:
    """What is compared: the output, or the gradients as one tensor."""
    output = work.step(call, turn)
    if not training:
        return output
    grads = [parameter.grad.flatten().float() for parameter in work.model.parameters() if parameter.grad is not None]
    return [torch.cat(grads), output.float()]
