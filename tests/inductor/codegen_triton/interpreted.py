"""Runs in a process of its own, in Triton's interpreter: random graphs of loop nodes through the Triton printer,
compared with the reference evaluator. Prints failures, then "done"."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import interpreter  # before anything loads Triton
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph, assert_close, fresh_memory, run_reference, view
from random_graphs import Generator

from stator.base.config import Options
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule


def run(graph: Graph, options: Options) -> tuple[dict[str, torch.Tensor], str]:
    memory = fresh_memory(graph)
    texts = []
    for group in schedule(graph.lowered(), options).steps:
        source = print_kernel(group, graph.buffers)
        texts.append(source.source)
        tensors = [memory[name] for name in (*group.reads, *group.writes)]
        interpreter.InterpretedKernel(source).bind(len(tensors))(*tensors)
    return {name: view(graph, memory, name) for name in graph.outputs}, "\n".join(texts)


def check(name: str, graph: Graph, fusion: bool = True) -> None:
    expected = run_reference(graph)
    try:
        actual, text = run(graph, Options(fusion=fusion))
        assert_close(actual, expected, text)
    except Exception:
        print(f"FAILED {name} (fusion {fusion}):\n{traceback.format_exc(limit=-6)}")


def main() -> None:
    from handwritten import GRAPHS

    if sys.argv[1] == "handwritten":
        for name, make in GRAPHS.items():
            check(name, make())
    else:
        for seed in range(int(sys.argv[1]), int(sys.argv[2])):
            check(f"seed {seed}", Generator(seed).build(), fusion=bool(seed % 4))
    print("done")


if __name__ == "__main__":
    main()
