"""Runs in a process of its own, without the interpreter: kernels through the Triton printer and the compiler of Triton
down to machine code, which needs no GPU. Prints one line per failure, then "done"."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from gpu_compiler import failures

sys.path.insert(0, str(Path(__file__).parents[1]))

from handwritten import GRAPHS
from kernel_harness import Graph
from random_graphs import Generator

from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule

CHOSEN = [
    *(
        "tanh of float32",
        "pow of float32",
        "mod of float32",
        "floor_div of int64, int64",
        "maximum of float32, float32",
    ),
    *("div of float32, float32", "sqrt of float32", "erf of float32", "lgamma of float32", "isnan of float32"),
    *("sum of torch.float32, 3 x 37", "max of torch.float32, 2 x 5000", "argmax of torch.float32, 70 x 2100, strided"),
    *("argmin of torch.int64, 5 x 64, strided", "any of torch.bool, 2 x 5000", "all of torch.bool, 3 x 37"),
    *("prod of torch.int64, 5 x 64, strided", "a row is normalised after its mean and variance are known"),
    *("embedding rows by indices of which some are negative", "padding by a mask: lanes outside read nothing"),
    *("half precision is computed in float32 and rounded once", "conversions between dtypes"),
    *("totals of loops inside of iterations, alone and inside of rows",),
    *("a store that adds where indices meet", "division and remainder in an index"),
    *("random bits and normal numbers, to the last bit", "a tile: operands contiguous along two loops"),
]


def main() -> None:
    missing = [name for name in CHOSEN if not any(known.startswith(name) for known in GRAPHS)]
    assert not missing, missing
    graphs: dict[str, Graph] = {f"seed {seed}": Generator(seed).build() for seed in range(3)}
    for name, make in GRAPHS.items():
        if any(name.startswith(chosen) for chosen in CHOSEN):
            graphs[name] = make()
    sources = [
        dataclasses.replace(print_kernel(group, graph.buffers), name=name)
        for name, graph in graphs.items()
        for group in schedule(graph.lowered()).steps
    ]
    for failure in failures(sources, [(90, "int32", True)]):
        print(f"FAILED {failure}")
    print("done")


if __name__ == "__main__":
    main()
