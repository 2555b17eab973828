"""How long capture takes: BERT-base, and transformers of 3 to 48 layers, which shows how the time grows.

`python -m benchmarks.capture` prints the median seconds of a first call with backend "eager" (bytecode to graph, guards
and emitted code), less those of the second call, and the same for torch.compile. Each model is new.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import stator
from benchmarks.models import import_torchvision

LAYERS = (3, 6, 12, 24, 48)
REPETITIONS = 3
Compiler = Callable[[torch.nn.Module], Any]


def seconds_of_capture(
    compiler: Callable[[torch.nn.Module], Any], model: torch.nn.Module, *args: torch.Tensor
) -> float:
    """Of the first call beyond the second one. No gradients."""
    compiled, times = compiler(model), []
    with torch.no_grad():
        for _ in range(2):
            start = time.perf_counter()
            compiled(*args)
            times.append(time.perf_counter() - start)
    return times[0] - times[1]


def compilers() -> dict[str, Compiler]:
    def ours(model: torch.nn.Module) -> Any:
        return stator.compile(model, backend="eager", fullgraph=True)

    def peers(model: torch.nn.Module) -> Any:
        torch._dynamo.reset()
        return torch.compile(model, backend="eager", fullgraph=True)

    return {"stator": ours, "torch.compile": peers}


def measure(**sizes: int) -> dict[str, float]:
    """Seconds of capture of a BERT of these sizes, by compiler."""
    import_torchvision()
    from transformers import BertConfig, BertModel

    config = BertConfig(**sizes)
    ids = torch.randint(config.vocab_size, (1, 16))
    times: dict[str, list[float]] = {name: [] for name in compilers()}
    for _ in range(REPETITIONS):
        for name, compiler in compilers().items():
            times[name].append(seconds_of_capture(compiler, BertModel(config).eval(), ids))
    return {name: statistics.median(samples) for name, samples in times.items()}


def main() -> None:
    measure(num_hidden_layers=1)  # what is imported and set up once
    for name, seconds in measure().items():
        print(f"BERT-base, {name}: {seconds:.2f} s")
    for layers in LAYERS:
        found = measure(hidden_size=64, intermediate_size=64, num_attention_heads=4, num_hidden_layers=layers)
        per_layer = ", ".join(f"{name} {seconds / layers * 1e3:.1f} ms" for name, seconds in found.items())
        print(f"{layers} layers, each: {per_layer}")


if __name__ == "__main__":
    main()
