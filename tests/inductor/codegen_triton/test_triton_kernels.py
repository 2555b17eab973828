"""Triton kernels from the same loop bodies as the C++ ones: right in Triton's interpreter, accepted by its compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernel_harness import Graph

from stator.base.errors import CompileError
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.schedule import schedule
from stator.runtime.cuda.kernels import read_module

HERE = Path(__file__).parent
ROOT = HERE.parents[2]  # where the package of the benchmarks is
# operators that take few blocks
QUICK = (
    "addmm",
    "argmax",
    "cumsum",
    "diagonal",
    "gather",
    "index_add",
    "nn.functional.pad",
    "softmax",
    "std_mean",
    "tril",
)

pytest.importorskip("triton")


def run(script: str, *arguments: str, tmp_path: Path) -> None:
    environment = {**os.environ, "STATOR_CACHE_DIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment.pop("TRITON_INTERPRET", None)  # scripts that interpret import interpreter.py
    answer = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], capture_output=True, text=True, env=environment, timeout=1500
    )
    assert answer.returncode == 0 and answer.stdout == "done\n", answer.stdout + answer.stderr


def test_each_part_of_the_vocabulary_in_the_interpreter(tmp_path: Path) -> None:
    run("interpreted.py", "handwritten", tmp_path=tmp_path)


def test_functions_of_our_own_are_as_accurate_as_the_device_library(tmp_path: Path) -> None:
    run("functions_interpreted.py", tmp_path=tmp_path)


def test_random_fused_graphs_in_the_interpreter(tmp_path: Path) -> None:
    run("interpreted.py", "0", "8", tmp_path=tmp_path)


@pytest.mark.parametrize("seeds", ((0, 40), pytest.param((40, 600), marks=pytest.mark.slow)))
def test_random_products_with_their_epilogues_in_the_interpreter(seeds: tuple[int, int], tmp_path: Path) -> None:
    run("products_interpreted.py", *map(str, seeds), tmp_path=tmp_path)


@pytest.mark.parametrize("seeds", ((0, 12), pytest.param((12, 300), marks=pytest.mark.slow)))
def test_products_of_groups_in_the_interpreter(seeds: tuple[int, int], tmp_path: Path) -> None:
    run("groups_interpreted.py", *map(str, seeds), tmp_path=tmp_path)


@pytest.mark.parametrize("seeds", ((0, 20), pytest.param((20, 400), marks=pytest.mark.slow)))
def test_convolutions_with_their_epilogues_in_the_interpreter(seeds: tuple[int, int], tmp_path: Path) -> None:
    run("windows_interpreted.py", *map(str, seeds), tmp_path=tmp_path)


@pytest.mark.parametrize("tiles", ("few", pytest.param("all", marks=pytest.mark.slow)))
def test_products_compile_for_gpus(tiles: str, tmp_path: Path) -> None:
    run("products_machine_code.py", tiles, tmp_path=tmp_path)


@pytest.mark.parametrize("seeds", ((0, 12), pytest.param((12, 600), marks=pytest.mark.slow)))
def test_random_attention_in_the_interpreter(seeds: tuple[int, int], tmp_path: Path) -> None:
    run("attention_interpreted.py", *map(str, seeds), tmp_path=tmp_path)


@pytest.mark.parametrize("tiles", ("few", pytest.param("all", marks=pytest.mark.slow)))
def test_attention_compiles_for_gpus(tiles: str, tmp_path: Path) -> None:
    run("attention_machine_code.py", tiles, tmp_path=tmp_path)


@pytest.mark.parametrize("sizes", ("few", pytest.param("all", marks=pytest.mark.slow)))
@pytest.mark.parametrize("indices", ("narrow", "wide"))
def test_one_kernel_for_all_sizes_in_the_interpreter(indices: str, sizes: str, tmp_path: Path) -> None:
    run("all_sizes_interpreted.py", indices, sizes, tmp_path=tmp_path)


def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    run("machine_code.py", tmp_path=tmp_path)


def test_kernels_of_a_model_compile_for_gpus(tmp_path: Path) -> None:
    run("compiled_models.py", "inference", "bert", tmp_path=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ("inference", "training"))
def test_kernels_of_models_compile_for_gpus(mode: str, tmp_path: Path) -> None:
    run("compiled_models.py", mode, "bert", "gpt2", "resnet", tmp_path=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ("inference", "training"))
@pytest.mark.parametrize("name", ("bert", "gpt2"))
def test_models_in_the_interpreter(name: str, mode: str, tmp_path: Path) -> None:
    run("models_interpreted.py", mode, name, tmp_path=tmp_path)


def test_small_kernels_in_one_launch_in_the_interpreter(tmp_path: Path) -> None:
    run("combined_interpreted.py", tmp_path=tmp_path)


def test_columns_summed_beside_rows_in_the_interpreter(tmp_path: Path) -> None:
    run("row_sums_interpreted.py", tmp_path=tmp_path)


def test_other_blocks_in_the_interpreter(tmp_path: Path) -> None:
    run("variations_interpreted.py", tmp_path=tmp_path)


@pytest.mark.parametrize("kinds", ("few", pytest.param("all", marks=pytest.mark.slow)))
def test_depthwise_convolutions_in_the_interpreter(kinds: str, tmp_path: Path) -> None:
    run("depthwise_interpreted.py", kinds, tmp_path=tmp_path)


def test_long_rows_in_the_interpreter(tmp_path: Path) -> None:
    run("long_rows_interpreted.py", tmp_path=tmp_path)


def test_rows_with_gaps_in_the_interpreter(tmp_path: Path) -> None:
    run("aligned_rows_interpreted.py", tmp_path=tmp_path)


def test_operators_at_all_sizes_in_the_interpreter(tmp_path: Path) -> None:
    run("operators_interpreted.py", *QUICK, tmp_path=tmp_path)


def test_operators_of_all_dtypes_have_kernels_for_gpus(tmp_path: Path) -> None:
    run("operators_for_gpus.py", *QUICK, "pow", "scatter_reduce.amax", "scatter_reduce.sum", tmp_path=tmp_path)


@pytest.mark.slow
def test_every_operator_of_all_dtypes_has_kernels_for_gpus(tmp_path: Path) -> None:
    run("operators_for_gpus.py", tmp_path=tmp_path)


def doubled(count: int, name: str = "") -> tuple[Graph, str]:
    graph = Graph()
    given = graph.input(torch.randn(1).expand(count), name or None)
    out = graph.buffer([count], torch.float32)
    body = lambda ops, index, _: ops.store(out, index[0] + 0, ops.mul(*[ops.load(given, index[0] + 0)] * 2))  # noqa: E731
    graph.node([out], body, [count])
    graph.outputs = [out]
    (group,) = schedule(graph.lowered()).steps
    return graph, print_kernel(group, graph.buffers).source


def test_kernels_that_differ_in_names_only_are_one_text() -> None:
    assert doubled(100)[1] == doubled(100, "other")[1]


def test_a_whole_number_of_blocks_needs_no_mask() -> None:
    assert "mask" not in doubled(2048)[1] and "xmask" in doubled(2047)[1]


def test_large_kernels_access_16_bytes_at_a_time(tmp_path: Path) -> None:
    run("wide_accesses.py", tmp_path=tmp_path)


def test_indices_of_huge_buffers_have_64_bits() -> None:
    assert read_module(doubled(2**31 - 2**11)[1])[2]() == ((2**21 - 2,), "int32")
    assert read_module(doubled(2**31 - 1)[1])[2]() == ((2**21,), "int64")  # lanes behind the end


def test_what_triton_kernels_cannot_compute_is_said() -> None:
    graph = Graph()
    given = graph.input(torch.ones(8, dtype=torch.int64))
    out = graph.buffer([8], torch.int64)

    def body(ops, index, _) -> None:  # type: ignore[no-untyped-def]
        value = ops.load(given, index[0] + 0)
        ops.store(out, index[0] + 0, ops.elementwise("gcd", value, value))

    graph.node([out], body, [8])
    graph.outputs = [out]
    (group,) = schedule(graph.lowered()).steps
    with pytest.raises(CompileError, match="cannot compute 'gcd'"):
        print_kernel(group, graph.buffers)
