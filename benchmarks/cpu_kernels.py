"""Memory-bound graphs on a CPU: the bandwidth of stator's kernels beside torch eager, torch.compile and a copy.

Run as `python -m benchmarks.cpu_kernels [--threads N] [--json FILE] [--only WORD ...] [--without-compile]`. The bytes
of a row are the fewest that its function must move: each input read once, each output written once. Large tensors have
8 MB: more than a second-level cache, and less than what the allocator maps anew for each result; rows "of 64 MB" have
such results. The copy has as many bytes as the first tensor, 8 MB at least, between tensors that stay. Systems and the
copy alternate; times are the least, of this thread's own on the processor, or of the clock with several threads. The
share compares with the copy; "of best" is the best of copy, eager and torch.compile over stator's time. Differences are
from float64.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import stator
from benchmarks.kernel_rows import (
    Arguments,
    Row,
    adam,
    batch_norm,
    difference,
    first_results,
    gelu_chain,
    layer_norm,
    rms_norm,
    size,
    softmax,
    swiglu,
    times_first,
)
from stator.base import counters

HALF = torch.bfloat16
N = 1 << 21  # elements of a large tensor in float32
CALLS, ROUNDS, SECONDS = 3, 9, 0.5  # calls in a row; rounds and seconds at least


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def rows_of(columns: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return randn(4 * N // dtype.itemsize // columns, columns, dtype=dtype, grad=grad)


def normalised(columns: int, dtype: torch.dtype = torch.float32, count: int = 2, grad: bool = False) -> Arguments:
    return [rows_of(columns, dtype, grad), *(randn(columns, dtype=dtype, grad=grad) for _ in range(count))]


def logits(words: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Arguments:
    x = rows_of(words, dtype, grad)
    return [x, torch.randint(words, (len(x),))]


def image(*shape: int, dtype: torch.dtype = torch.float32, nhwc: bool = False, grad: bool = False) -> torch.Tensor:
    x = torch.randn(shape, dtype=dtype)
    if nhwc:
        x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return x.requires_grad_(grad)


def images(nhwc: bool = False, grad: bool = False, dtype: torch.dtype = torch.float32) -> Arguments:
    return [image(10, 64, 56, 56, dtype=dtype, nhwc=nhwc, grad=grad), randn(64, grad=grad), randn(64, grad=grad)]


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 16, weight, bias)


def split_gates(x: torch.Tensor) -> torch.Tensor:
    i, f, g, o = x.chunk(4, -1)
    return torch.sigmoid(f) * torch.tanh(g) + torch.sigmoid(i) * o


def masked_softmax(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.masked_fill(mask, float("-inf")), -1)


def embedding_gradient(grad: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(grad, indices, 4096, -1, False)


def embedded(dtype: torch.dtype = torch.float32) -> Arguments:
    return [rows_of(512, dtype), torch.randint(4096, (len(rows_of(512, dtype)),))]


def pooled(row: str, function: Callable[[torch.Tensor], torch.Tensor], share: float, **kind: Any) -> list[Row]:
    """Pooling and its gradient. share: the size of a result over that of the images."""

    def moved(times: float) -> Callable[[Arguments], int]:
        return times_first(times * (1 + share))

    return [
        Row(row, function, lambda: [image(10, 64, 56, 56, **kind)], bytes_moved=moved(1)),
        Row(f"{row} fwd+bwd", function, lambda: [image(10, 64, 56, 56, grad=True, **kind)], True, moved(2)),
    ]


def max_pool(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 3, 2, 1)


def average_pool(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 2)


def reductions() -> list[Row]:
    kinds: dict[str, Callable[..., Any]] = {
        "sum": torch.sum,
        "max": torch.amax,
        "var": torch.var,
        "argmax": torch.argmax,
    }
    rows = []
    for name, kind in kinds.items():
        rows += [
            Row(f"{name} of rows", lambda x, f=kind: f(x, -1), lambda: [rows_of(1024)]),
            Row(f"{name} of columns", lambda x, f=kind: f(x, 0), lambda: [rows_of(1024)]),
            Row(f"{name} of middle", lambda x, f=kind: f(x, 1), lambda: [randn(16, 256, 512)]),
        ]
    for name in ("sum", "max", "var"):
        kind = kinds[name]
        rows += [
            Row(f"{name} of images", lambda x, f=kind: f(x, (2, 3)), lambda: [image(10, 64, 56, 56)]),
            Row(f"{name} of images nhwc", lambda x, f=kind: f(x, (2, 3)), lambda: [image(10, 64, 56, 56, nhwc=True)]),
            Row(f"{name} of channels", lambda x, f=kind: f(x, (0, 2, 3)), lambda: [image(10, 64, 56, 56)]),
            Row(
                f"{name} of channels nhwc",
                lambda x, f=kind: f(x, (0, 2, 3)),
                lambda: [image(10, 64, 56, 56, nhwc=True)],
            ),
        ]
    return [
        *rows,
        Row("sum of all", torch.sum, lambda: [randn(N)]),
        Row("argmax of all", torch.argmax, lambda: [randn(N)]),
        Row("sum of short rows", lambda x: x.sum(-1), lambda: [rows_of(8)]),
        Row("max of short rows", lambda x: x.amax(-1), lambda: [rows_of(8)]),
        Row("sum of rows bf16", lambda x: x.sum(-1), lambda: [rows_of(1024, HALF)]),
        Row("sum of columns bf16", lambda x: x.sum(0), lambda: [rows_of(1024, HALF)]),
        Row("mean of voxels", lambda x: x.mean((2, 3, 4)), lambda: [image(2, 32, 32, 32, 32)]),
        Row("three results", lambda x: (x.sum(-1), x.amax(-1), (x * x).sum(-1)), lambda: [rows_of(1024)]),
        Row("three results of columns", lambda x: (x.sum(0), x.amax(0), (x * x).sum(0)), lambda: [rows_of(1024)]),
        Row("sums of rows and columns", lambda x: (x.sum(0), x.sum(1)), lambda: [rows_of(1024)]),
    ]


ROWS = [
    Row("add", lambda x, y: x + y, lambda: [randn(N), randn(N)]),
    Row("add of 64 MB", lambda x, y: x + y, lambda: [randn(8 * N), randn(8 * N)]),
    Row("softmax of 64 MB", softmax, lambda: [randn(8 * N // 1024, 1024)]),
    Row("layer norm of 64 MB", layer_norm, lambda: [randn(8 * N // 1024, 1024), randn(1024), randn(1024)]),
    Row("gelu chain", gelu_chain, lambda: [rows_of(1024), randn(1024), rows_of(1024)]),
    Row(
        "gelu chain bf16",
        gelu_chain,
        lambda: [rows_of(1024, HALF), randn(1024, dtype=HALF), rows_of(1024, HALF)],
    ),
    Row("tanh gelu", lambda x: F.gelu(x, approximate="tanh"), lambda: [randn(N)]),
    Row("gelu fwd+bwd", F.gelu, lambda: [randn(N, grad=True)], True, times_first(5)),
    Row("swiglu", swiglu, lambda: [rows_of(1024), rows_of(1024)]),
    Row("swiglu bf16", swiglu, lambda: [rows_of(1024, HALF), rows_of(1024, HALF)]),
    Row("cast to bf16", lambda x: x.to(HALF), lambda: [randn(N)]),
    Row("cast to f32", lambda x: x.float(), lambda: [randn(N, dtype=HALF)]),
    Row("masked fill", lambda x, mask: x.masked_fill(mask, -1.0), lambda: [randn(N), torch.rand(N) < 0.5]),
    Row(
        "adam",
        adam,
        lambda: [randn(N // 2), randn(N // 2), randn(N // 2), randn(N // 2).abs()],
        bytes_moved=times_first(7),
    ),
    Row("softmax x128", softmax, lambda: [rows_of(128)]),
    Row("softmax x1024", softmax, lambda: [rows_of(1024)]),
    Row("softmax x32768", softmax, lambda: [rows_of(32768)]),
    Row("softmax x262144", softmax, lambda: [rows_of(262144)]),
    Row("softmax bf16 x1024", softmax, lambda: [rows_of(1024, HALF)]),
    Row("softmax of columns", lambda x: torch.softmax(x, 0), lambda: [rows_of(1024)]),
    Row("softmax of channels", lambda x: torch.softmax(x, 1), lambda: [image(2, 20, 224, 224)]),
    Row("softmax fwd+bwd", softmax, lambda: [rows_of(1024, grad=True)], True, times_first(5)),
    Row("log softmax", lambda x: torch.log_softmax(x, -1), lambda: [rows_of(1024)]),
    Row("masked softmax", masked_softmax, lambda: [rows_of(512), torch.rand(len(rows_of(512)), 512) < 0.2]),
    Row("layer norm x768", layer_norm, lambda: normalised(768)),
    Row("layer norm bf16 x768", layer_norm, lambda: normalised(768, HALF)),
    Row("layer norm x4096", layer_norm, lambda: normalised(4096)),
    Row("layer norm fwd+bwd", layer_norm, lambda: normalised(768, grad=True), True, times_first(5)),
    Row("layer norm bf16 fwd+bwd", layer_norm, lambda: normalised(768, HALF, grad=True), True, times_first(5)),
    Row("rms norm", rms_norm, lambda: normalised(2048, count=1)),
    Row("rms norm bf16", rms_norm, lambda: normalised(2048, HALF, 1)),
    Row("rms norm fwd+bwd", rms_norm, lambda: normalised(2048, count=1, grad=True), True, times_first(5)),
    Row("batch norm", batch_norm, images, bytes_moved=times_first(3)),
    Row("batch norm nhwc", batch_norm, lambda: images(True), bytes_moved=times_first(3)),
    Row("batch norm fwd+bwd", batch_norm, lambda: images(grad=True), True, times_first(8)),
    Row("batch norm nhwc fwd+bwd", batch_norm, lambda: images(True, grad=True), True, times_first(8)),
    Row("group norm", group_norm, images),
    Row("group norm nhwc", group_norm, lambda: images(True), bytes_moved=times_first(3)),
    Row("group norm nhwc bf16", group_norm, lambda: images(True, dtype=HALF), bytes_moved=times_first(3)),
    Row("group norm fwd+bwd", group_norm, lambda: images(grad=True), True, times_first(5)),
    Row("group norm nhwc fwd+bwd", group_norm, lambda: images(True, grad=True), True, times_first(5)),
    *reductions(),
    Row("cumsum of rows", lambda x: x.cumsum(-1), lambda: [rows_of(1024)]),
    Row("cumsum of columns", lambda x: x.cumsum(0), lambda: [rows_of(1024)]),
    Row("transpose", lambda x: x.t().contiguous(), lambda: [rows_of(1024)]),
    Row("transpose and add", lambda x, y: x + y.t(), lambda: [rows_of(1448), rows_of(1448).t().contiguous()]),
    Row("transpose bf16", lambda x: (x.t() + 1).contiguous(), lambda: [rows_of(1024, HALF)]),
    Row("batched transpose", lambda x: x.mT.contiguous(), lambda: [randn(128, 128, 128)]),
    Row("heads to rows", lambda x: (x * 2).transpose(1, 2).contiguous(), lambda: [randn(16, 12, 170, 64)]),
    Row("permute 0213", lambda x: x.permute(0, 2, 1, 3).contiguous(), lambda: [randn(16, 128, 16, 64)]),
    Row("permute 2103", lambda x: x.permute(2, 1, 0, 3).contiguous(), lambda: [randn(64, 64, 64, 8)]),
    Row(
        "nchw to nhwc",
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda: [image(10, 64, 56, 56)],
    ),
    Row("nhwc to nchw", lambda x: x.contiguous(), lambda: [image(10, 64, 56, 56, nhwc=True)]),
    Row("rgb to nhwc", lambda x: x.contiguous(memory_format=torch.channels_last), lambda: [image(12, 3, 240, 240)]),
    Row("cat of rows", lambda x, y: torch.cat([x, y]), lambda: [randn(N // 2048, 1024), randn(N // 2048, 1024)]),
    Row("cat of columns", lambda x, y: torch.cat([x, y], 1), lambda: [randn(N // 1024, 512), randn(N // 1024, 512)]),
    Row("cat and gelu", lambda x, y: F.gelu(torch.cat([x, y], 1)), lambda: [randn(2048, 512), randn(2048, 512)]),
    Row("split", lambda x: [part * 2 for part in x.split(256, 1)], lambda: [rows_of(1024)]),
    Row("split gates", split_gates, lambda: [rows_of(2048)]),
    Row("stack", lambda x, y: torch.stack([x, y], -1), lambda: [randn(N // 2), randn(N // 2)]),
    Row("pad", lambda x: F.pad(x, (1, 1, 1, 1)), lambda: [image(10, 64, 56, 56)]),
    Row("roll", lambda x: x.roll((3, 3), (1, 2)), lambda: [randn(10, 56, 56, 64)]),
    Row("flip", lambda x: x.flip(-1), lambda: [rows_of(1024)]),
    Row("embedding", lambda t, at: F.embedding(at, t), embedded, bytes_moved=times_first(2)),
    Row("embedding bf16", lambda t, at: F.embedding(at, t), lambda: embedded(HALF), bytes_moved=times_first(1.5)),
    Row("embedding gradient", embedding_gradient, lambda: embedded(), bytes_moved=times_first(3)),
    Row("embedding gradient bf16", embedding_gradient, lambda: embedded(HALF), bytes_moved=times_first(2.5)),
    Row("index select", lambda x, at: x.index_select(0, at), embedded, bytes_moved=times_first(2)),
    Row("index select columns", lambda x, at: x[:, at], lambda: [rows_of(1024), torch.randperm(1024)]),
    Row("gather", lambda x, at: x.gather(1, at), lambda: [rows_of(1024), torch.randint(1024, (2048, 1024))]),
    Row(
        "scatter add",
        lambda x, at, y: x.scatter_add(1, at, y),
        lambda: [rows_of(1024), torch.randint(1024, (2048, 1024)), rows_of(1024)],
    ),
    Row(
        "index add",
        lambda x, at, y: x.index_add(0, at, y),
        lambda: [rows_of(512), torch.randint(4096, (4096,)), rows_of(512)],
    ),
    Row("cross entropy x1024", F.cross_entropy, lambda: logits(1024)),
    Row("cross entropy x32000", F.cross_entropy, lambda: logits(32000)),
    Row("cross entropy bf16 x32000", F.cross_entropy, lambda: logits(32000, HALF)),
    Row("cross entropy x1024 fwd+bwd", F.cross_entropy, lambda: logits(1024, grad=True), True, times_first(3)),
    Row("cross entropy x32000 fwd+bwd", F.cross_entropy, lambda: logits(32000, grad=True), True, times_first(3)),
    Row("cross entropy bf16 fwd+bwd", F.cross_entropy, lambda: logits(32000, HALF, True), True, times_first(3)),
    *pooled("max pool", max_pool, 0.25),
    *pooled("max pool nhwc", max_pool, 0.25, nhwc=True),
    *pooled("average pool", average_pool, 0.25),
    *pooled("average pool nhwc", average_pool, 0.25, nhwc=True),
    Row("adaptive pool", lambda x: F.adaptive_avg_pool2d(x, 7), lambda: [image(10, 64, 56, 56)]),
    Row("upsample nearest", lambda x: F.interpolate(x, scale_factor=2), lambda: [image(10, 64, 28, 28)]),
    Row(
        "upsample bilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda: [image(10, 64, 28, 28)],
    ),
]


def in_double(arguments: Arguments) -> Arguments:
    """The arguments in float64: in half floats, eager's gradients of some parameters are far from the sums."""
    return [
        one.detach().double().requires_grad_(one.requires_grad) if one.is_floating_point() else one for one in arguments
    ]


def least_milliseconds(calls: dict[str, Callable[[], object]], threads: int) -> dict[str, float]:
    """The least time of a call of each system, of rounds in which all alternate."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    least = dict.fromkeys(calls, math.inf)
    deadline, rounds = time.perf_counter() + SECONDS, 0
    while rounds < ROUNDS or time.perf_counter() < deadline:
        for name, call in calls.items():
            for _ in range(CALLS):
                start = clock()
                result = call()
                least[name] = min(least[name], (clock() - start) * 1e3)
                del result
        rounds += 1
    return least


def measure_row(row: Row, peers: Iterable[str], threads: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name}
    call, expected, arguments = first_results(row, row.function)
    source = torch.randn(max(N, size(arguments[0]) // 4))
    target = torch.empty_like(source)
    exact = first_results(replace(row, make=lambda: in_double(row.make())), row.function)[1]
    moved = row.bytes_moved(arguments) if row.bytes_moved else size(*arguments, *expected)
    found["megabytes"] = moved / 1e6
    expected = [wanted.to(one.dtype) for wanted, one in zip(exact, expected, strict=True)]
    del exact
    calls: dict[str, Callable[[], object]] = {"copy": lambda: target.copy_(source), "eager": call}
    counters.clear()
    stator.reset()
    torch.compiler.reset()
    systems: dict[str, Callable[..., Any]] = {"stator": stator.compile, **dict.fromkeys(peers, torch.compile)}
    for system, compile_with in systems.items():
        try:
            start = time.perf_counter()
            call, results, _ = first_results(row, compile_with(row.function, dynamic=False))
            found[f"{system}_first_call_s"] = time.perf_counter() - start
            if system == "stator":
                found["kernels"] = counters.counts["kernels"]
            found[f"{system}_error"], found[f"{system}_tolerance"] = difference(results, expected)
            calls[system] = call
            del results
        except Exception as error:
            found[f"{system}_failure"] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            found[f"{system}_traceback"] = traceback.format_exc()
    del expected
    for system, milliseconds in least_milliseconds(calls, threads).items():
        found[f"{system}_ms"] = milliseconds
    found["copy_gbs"] = 2 * size(source) / found["copy_ms"] / 1e6
    return found


def of_best(found: dict[str, Any]) -> float | None:
    """The time of the best of copy, eager and torch.compile over stator's."""
    if "stator_ms" not in found:
        return None
    peers = [found[f"{system}_ms"] for system in ("eager", "compile") if f"{system}_ms" in found]
    best = min(found["megabytes"] / found["copy_gbs"], *peers, math.inf)
    return float(best / found["stator_ms"])


def line(found: dict[str, Any]) -> str:
    columns = [f"{found['name']:29}"]
    for system in ("stator", "eager", "compile"):
        ms = found.get(f"{system}_ms")
        rate = found["megabytes"] / ms if ms else None  # GB/s
        columns.append(f"{rate:5.1f} {rate / found['copy_gbs']:5.0%}" if rate else f"{'-':>5} {'-':>5}")
    best = of_best(found)
    columns.append(f"{best:7.2f}" if best else f"{'-':>7}")
    columns.append(f"{found.get('kernels', 0):3}")
    error = found.get("stator_error")
    if error is not None:
        columns.append(f"{error:.0e}" + ("" if error <= found["stator_tolerance"] else " WRONG"))
    columns += [found[key][:100] for key in ("stator_failure", "compile_failure", "failure") if key in found]
    return "  ".join(columns)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((text.split(": ", 1)[1] for text in lines if text.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows with one of these words in their names")
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{processor()}, {options.threads} threads, torch {torch.__version__}")
    print(
        f"{'GB/s, share of the copy':29}  {'stator':>11}  {'eager':>11}  {'compile':>11}  of best  kernels, difference"
    )
    rows: list[dict[str, Any]] = []
    for row in ROWS:
        if options.only and not any(word in row.name for word in options.only):
            continue
        try:
            found = measure_row(row, [] if options.without_compile else ["compile"], options.threads)
            print(line(found), flush=True)
        except Exception as error:
            found = {"name": row.name, "failure": repr(error)[:200], "traceback": traceback.format_exc()}
            print(f"{row.name:29}  {found['failure']}", flush=True)
        rows.append(found)
        gc.collect()
        if options.json:
            written = {"processor": processor(), "threads": options.threads, "torch": torch.__version__, "rows": rows}
            options.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
