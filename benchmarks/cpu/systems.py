"""What the CPU benchmark compares: eager, stator, torch.compile and ONNX Runtime, each as a callable like the model."""

from __future__ import annotations

import importlib
import importlib.util
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from benchmarks.work import Work

# "torch.compile max" is torch.compile with freezing and max-autotune
SYSTEMS = (
    *("eager", "stator", "stator frozen", "stator frozen max", "torch.compile", "torch.compile max", "onnxruntime"),
)
TRAINING = ("eager", "stator", "torch.compile")


def missing(system: str) -> bool:
    libraries = ("onnx", "onnxruntime") if system == "onnxruntime" else ()
    return any(importlib.util.find_spec(library) is None for library in libraries)


def load(systems: list[str]) -> None:
    """Import what compiles, before the clock starts."""
    for prefix, module in (("stator", "stator"), ("torch.compile", "torch._inductor.compile_fx")):
        if any(system.startswith(prefix) for system in systems):
            importlib.import_module(module)


def compiled(system: str, work: Work) -> Callable[..., Any]:
    return _in_onnxruntime(work) if system == "onnxruntime" else compiled_module(system, work.model)


def compiled_module(system: str, module: torch.nn.Module) -> Callable[..., Any]:
    """The module in any system but ONNX Runtime."""
    import stator

    if system == "eager":
        return module
    if system == "stator":
        return stator.compile(module)
    if system == "stator frozen":
        return stator.freeze(module)
    if system == "stator frozen max":
        return stator.freeze(module, mode="max-autotune")
    if system == "torch.compile":
        return torch.compile(module)
    if system == "torch.compile max":
        return torch.compile(module, mode="max-autotune")
    raise ValueError(f"no system {system!r}")


def settings(system: str) -> AbstractContextManager[object]:
    """What must hold while the system compiles: freezing is a setting of the process in torch.compile."""
    if system != "torch.compile max":
        return nullcontext()
    return importlib.import_module("torch._inductor.config").patch(freezing=True)


class _First(torch.nn.Module):
    """The first output alone: an exported graph takes no cache of keys and values."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, tensors, strict=True)), use_cache=False, return_dict=False)[0]


def _in_onnxruntime(work: Work) -> Callable[..., torch.Tensor]:
    onnxruntime = importlib.import_module("onnxruntime")
    args, kwargs = work.batches[0]
    names, exported = [f"x{place}" for place in range(len(args))] + list(kwargs), io.BytesIO()
    model, tensors = (_First(work.model, names).eval(), tuple(kwargs.values())) if kwargs else (work.model, args)
    torch.onnx.export(model, tensors, exported, dynamo=False, input_names=names, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # its idle threads take no other system's time
    session = onnxruntime.InferenceSession(exported.getvalue(), options, providers=["CPUExecutionProvider"])
    used = {one.name for one in session.get_inputs()}

    def call(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        given = zip(names, (*args, *kwargs.values()), strict=True)
        return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in given if name in used})[0])

    return call
