"""Runs in a process of its own, in Triton's interpreter: random graphs of loop nodes through the Triton printer,
compared with the reference evaluator. Prints failures, then "done"."""

from __future__ import annotations

import sys
import tempfile
import traceback
from pathlib import Path

import interpreter  # noqa: F401 - before anything loads Triton
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph, assert_close, fresh_memory, run_reference, view
from random_graphs import Generator

from stator.base.config import Options
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule
from stator.runtime.triton_kernels import load_module, make_kernel


def run(graph: Graph, folder: Path, options: Options) -> tuple[dict[str, torch.Tensor], str]:
    memory = fresh_memory(graph)
    texts = []
    for group in schedule(graph.lowered(), options).steps:
        source = print_kernel(group, graph.buffers)
        texts.append(source.source)
        module = load_module(source.source, folder)
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
