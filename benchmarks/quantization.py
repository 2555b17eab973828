"""Quantized models by the flows of torchao beside eager: `python -m benchmarks.quantization FLOW SYSTEM`.

SYSTEM is as in `benchmarks.cpu`. Each run is a process with one thread, and prints the least milliseconds of the
processor of calls by turns: of the float32 model in eager, the quantized model in eager, and compiled. `--rows` is the
batch of the layers. Needs torchao (`make test-ecosystem` installs it).
"""

from __future__ import annotations

import argparse
import copy
import importlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.cpu.systems import compiled_module, settings
from benchmarks.measure import seconds_of, steady_state
from benchmarks.models import build, largest_relative_difference

SYSTEMS = ("stator", "stator frozen", "torch.compile", "torch.compile max")
FLOWS = ("int8-weight-only", "int8-dynamic", "static", "dynamic", "resnet50-static")


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024), nn.LayerNorm(1024)).eval()


def by_tensors(model: nn.Module, config: str) -> nn.Module:
    """Weights become tensor subclasses."""
    api = importlib.import_module("torchao.quantization")
    quantized = copy.deepcopy(model)
    api.quantize_(quantized, getattr(api, config)())
    return quantized


def by_graph(model: nn.Module, x: torch.Tensor, dynamic: bool) -> nn.Module:
    """An exported graph gets operators that quantize and dequantize."""
    flow = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    rules = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = rules.X86InductorQuantizer()
    quantizer.set_global(rules.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
    prepared = flow.prepare_pt2e(torch.export.export(model, (x,)).module(), quantizer)
    for _ in range(2):
        prepared(torch.randn_like(x))
    return flow.convert_pt2e(prepared)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flow", choices=FLOWS)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=6.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dtype = getattr(torch, given.dtype)
    if given.flow == "resnet50-static":
        case = build("resnet50")
        model, x = case.model.to(dtype), case.args[0].to(dtype)
    else:
        model, x = layers().to(dtype), torch.randn(given.rows, 1024, dtype=dtype)
    if given.flow.startswith("int8"):
        dynamic = given.flow == "int8-dynamic"
        quantized = by_tensors(model, "Int8DynamicActivationInt8WeightConfig" if dynamic else "Int8WeightOnlyConfig")
    else:
        quantized = by_graph(model, x, given.flow == "dynamic")
    expected, call = quantized(x), compiled_module(given.system, quantized)
    with settings(given.system):
        first, found = seconds_of(lambda: call(x))
    difference = largest_relative_difference(found, expected)
    systems: dict[str, Callable[[], Any]] = {
        "float": lambda: model(x),
        "eager": lambda: quantized(x),
        given.system: lambda: call(x),
    }
    times = steady_state(systems, seconds=given.seconds, least=8, clock=time.process_time)
    least = {name: 1e3 * min(samples) for name, samples in times.items()}
    print(
        f"{given.flow} {given.dtype} rows {given.rows} {given.system}: first {first:.1f} s, "
        f"float {least['float']:.3f} ms, quantized {least['eager']:.3f} ms, {least[given.system]:.3f} ms, over float "
        f"{least['float'] / least[given.system]:.2f}, over quantized {least['eager'] / least[given.system]:.2f}, "
        f"difference {difference:.1e}",
        flush=True,
    )


if __name__ == "__main__":
    main()
