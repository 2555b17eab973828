"""What stator gains inside of other libraries: the time of eager loops over that of loops with a compiled model.

`python -m benchmarks.ecosystem` needs the libraries of docs/ecosystem.md, which `make test-ecosystem` installs, and
prints that page's table. Each program runs some steps with the library's own loop, on one thread; eager and compiled
take turns, and medians are compared. The first runs, which compile, are not counted.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

import stator

from .models import import_torchvision

Compile = Callable[[Any], Any]
Run = Callable[[], object]
WARM, ROUNDS, STEPS = 2, 7, 8


def _bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    return BertForSequenceClassification(BertConfig(vocab_size=1000, **sizes))


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, bos_token_id=1, eos_token_id=None)
    )


def trainer(compile_: Compile) -> Run:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.tensor(n % 2)} for n in range(64)]
    arguments = TrainingArguments(
        tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=8, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    return Trainer(model=compile_(_bert()), args=arguments, train_dataset=rows).train


def generate(compile_: Compile) -> Run:
    model = _gpt2().eval()
    model.forward = compile_(model.forward)
    prompt = torch.randint(2, 1000, (1, 16))
    return lambda: model.generate(prompt, max_new_tokens=16, do_sample=False)


def accelerate(compile_: Compile) -> Run:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    model = compile_(model)
    x = torch.randn(8, 64, 128)

    def steps() -> None:
        for _ in range(STEPS):
            accelerator.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()

    return steps


def lightning(compile_: Compile) -> Run:
    import lightning as library

    class Autoencoder(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            sizes = (784, 512, 128, 512, 784)
            layers = [torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.LayerNorm(b), torch.nn.GELU())
                      for a, b in itertools.pairwise(sizes)]  # fmt: skip
            self.network = compile_(torch.nn.Sequential(*layers))

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return (self.network(batch[0]) - batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(128 * STEPS, 784)), batch_size=128, num_workers=0
    )
    module = Autoencoder()

    def fit() -> None:
        library.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, data)  # fmt: skip

    return fit


def timm(compile_: Compile) -> Run:
    import timm as library

    model = library.create_model("convnext_atto", num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled, images, labels = compile_(model), torch.randn(4, 3, 96, 96), torch.arange(4)

    def step() -> None:
        torch.nn.functional.cross_entropy(compiled(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def diffusers(compile_: Compile) -> Run:
    from diffusers import DDPMScheduler, UNet2DModel

    unet = UNet2DModel(
        sample_size=32, block_out_channels=(64, 128), layers_per_block=1, norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    compiled, scheduler = compile_(unet), DDPMScheduler()
    scheduler.set_timesteps(3)

    @torch.no_grad()
    def sample() -> None:
        x = torch.randn(1, 3, 32, 32)
        for step in scheduler.timesteps:
            x = scheduler.step(compiled(x, step).sample, step, x).prev_sample

    return sample


def peft(compile_: Compile) -> Run:
    from peft import LoraConfig, get_peft_model

    model = compile_(get_peft_model(_gpt2(), LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    tokens = torch.randint(0, 1000, (4, 64))

    def step() -> None:
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def torch_geometric(compile_: Compile) -> Run:
    from torch_geometric.nn import GCN

    model = GCN(64, 64, num_layers=3, out_channels=8)
    optimizer = torch.optim.Adam(model.parameters())
    compiled, x, edges = compile_(model), torch.randn(1000, 64), torch.randint(0, 1000, (2, 8000))

    def step() -> None:
        compiled(x, edges).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def torchao(compile_: Compile) -> Run:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layers = [torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512), torch.nn.LayerNorm(512)]
    model = torch.nn.Sequential(*layers * 2).eval()
    quantize_(model, Int8WeightOnlyConfig())
    compiled, x = compile_(model), torch.randn(8, 512)

    @torch.no_grad()
    def infer() -> None:
        for _ in range(STEPS):
            compiled(x)

    return infer


PROGRAMS: dict[str, tuple[str, Callable[[Compile], Run]]] = {
    "transformers, Trainer": ("steps of BERT, 4 layers of 256", trainer),
    "transformers, generate": ("16 tokens of GPT-2, 4 layers of 256", generate),
    "accelerate": ("steps of a transformer encoder, 2 layers of 128", accelerate),
    "Lightning": ("an epoch of an autoencoder", lightning),
    "timm": ("a step of convnext_atto, 96 x 96", timm),
    "diffusers": ("3 steps of sampling by a UNet, 32 x 32", diffusers),
    "peft": ("a step of LoRA on GPT-2, 4 layers of 256", peft),
    "PyTorch Geometric": ("a step of a GCN, 1,000 nodes and 8,000 edges", torch_geometric),
    "torchao": ("an int8 weight-only network, 512 to 2,048", torchao),
}


def gain(program: Callable[[Compile], Run]) -> float:
    """Eager's median time over stator's."""
    runs = []
    for compile_ in (lambda model: model, stator.compile):
        torch.manual_seed(0)
        runs.append(program(compile_))
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(WARM + ROUNDS):
        for run, seconds in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            if turn >= WARM:
                seconds.append(time.perf_counter() - start)
    return statistics.median(times[0]) / statistics.median(times[1])


def main() -> None:
    import_torchvision()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print("| library | program | times eager's speed |\n| --- | --- | ---: |")
    for name, (what, program) in PROGRAMS.items():
        print(f"| {name} | {what} | {gain(program):.2f} |", flush=True)


if __name__ == "__main__":
    main()
