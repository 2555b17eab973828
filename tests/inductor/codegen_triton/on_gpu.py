"""Runs where there is a GPU: the handwritten and random graphs of loop nodes through the Triton printer on the device,
compared with the reference evaluator on the CPU. Prints one line per failure, then "done"."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from handwritten import GRAPHS
from kernel_harness import Graph, fresh_memory, run_reference, view
from random_graphs import Generator

from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule
from stator.runtime.triton_kernels import load_module, make_kernel

# The device library is accurate to a few ULP, and sums are taken in another order
RELATIVE, ABSOLUTE = 5e-5, 5e-6


def check(name: str, graph: Graph, folder: Path) -> None:
    expected = run_reference(graph)
    memory = {buffer: tensor.cuda() for buffer, tensor in fresh_memory(graph).items()}
    text = ""
    try:
        for group in schedule(graph.lowered()).steps:
            source = print_kernel(group, graph.buffers)
            text += source.source
            kernel = make_kernel(load_module(source.source, folder), source.symbol)
            kernel(*[memory[buffer] for buffer in (*group.reads, *group.writes)])
        for output, value in expected.items():
            actual = view(graph, memory, output).cpu()
            tolerance = {"rtol": RELATIVE, "atol": ABSOLUTE} if value.dtype is torch.float32 else {}
            torch.testing.assert_close(actual, value, equal_nan=True, **tolerance)
    except Exception:
        print(f"FAILED {name}:\n{traceback.format_exc(limit=-3)}\n{text if 'verbose' in sys.argv else ''}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, make in GRAPHS.items():
            check(name, make(), Path(folder))
        for seed in range(40):
            check(f"seed {seed}", Generator(seed).build(), Path(folder))
    print("done")


if __name__ == "__main__":
    main()
