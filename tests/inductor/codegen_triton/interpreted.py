"""Runs in a process of its own under TRITON_INTERPRET=1 (it must be set before triton is imported): random graphs of
loop nodes through the Triton printer, compared with the reference evaluator. Prints failures, then "done"."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph, assert_close, fresh_memory, run_reference, view
from random_graphs import Generator
from triton import language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from stator.base.config import Options
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule
from stator.runtime.triton_kernels import load_module, make_kernel


def cast(builder: InterpreterBuilder, source: TensorHandle, target: tl.dtype) -> TensorHandle:
    """Conversions as GPUs do them: the interpreter's own cut bfloat16 off instead of rounding it to nearest."""
    values, dtype = source.data, target.scalar
    if source.dtype.scalar == tl.bfloat16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if dtype == tl.bfloat16:
        rounded = torch.from_numpy(np.ascontiguousarray(values.astype(np.float32))).bfloat16()
        return TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), dtype)
    return TensorHandle(values.astype(_get_np_dtype(target)), dtype)


InterpreterBuilder.cast_impl = cast


def on_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter has no device library: the same functions from numpy or torch."""

    def call(*arguments: Any) -> Any:
        arrays = [argument.handle.data for argument in arguments]
        dtype = arguments[0].dtype.scalar
        result = np.asarray(function(*arrays)).astype(arrays[0].dtype)
        return tl.core.tensor(TensorHandle(result, dtype), arguments[0].type)

    return call


def from_torch(name: str) -> Callable[..., Any]:
    return lambda *arrays: getattr(torch, name)(*map(torch.from_numpy, map(np.ascontiguousarray, arrays))).numpy()


_NAMES = ["expm1", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "hypot", "copysign", "nextafter"]
LIBRARY = SimpleNamespace(
    **{name: on_numpy(getattr(np, name)) for name in [*_NAMES, "trunc", "rint", "fmod"]},
    **{
        name: on_numpy(from_torch(name)) for name in ["lgamma", "erfc", "atan2", "rsqrt", "asin", "acos", "atan", "pow"]
    },
    **{name: on_numpy(from_torch(name)) for name in ["asinh", "acosh", "atanh"]},
    mul_rn=on_numpy(np.multiply),
)


def run(graph: Graph, folder: Path, options: Options) -> tuple[dict[str, torch.Tensor], str]:
    memory = fresh_memory(graph)
    texts = []
    for group in schedule(graph.lowered(), options).steps:
        source = print_kernel(group, graph.buffers)
        texts.append(source.source)
        module = load_module(source.source, folder)
        module.libdevice = LIBRARY
        make_kernel(module, source.symbol)(*[memory[name] for name in (*group.reads, *group.writes)])
    return {name: view(graph, memory, name) for name in graph.outputs}, "\n".join(texts)


def check(name: str, graph: Graph, folder: Path, fusion: bool = True) -> None:
    expected = run_reference(graph)
    try:
        actual, text = run(graph, folder, Options(fusion=fusion))
        assert_close(actual, expected, text)
    except Exception:
        print(f"FAILED {name} (fusion {fusion}):\n{traceback.format_exc(limit=-6)}")


def main() -> None:
    from handwritten import GRAPHS

    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "handwritten":
            for name, make in GRAPHS.items():
                check(name, make(), Path(folder))
        else:
            for seed in range(int(sys.argv[1]), int(sys.argv[2])):
                check(f"seed {seed}", Generator(seed).build(), Path(folder), fusion=bool(seed % 4))
    print("done")


if __name__ == "__main__":
    main()
