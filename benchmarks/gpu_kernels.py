"""Memory-bound graphs on a GPU: bandwidth of stator's kernels beside torch eager and torch.compile.

Run as `python -m benchmarks.gpu_kernels [--json FILE] [--only WORD ...] [--seconds S]`. The bytes of a row are the
fewest that its function must move: each input read once, each output written once. The share compares with a copy that
is measured in the same run. A row that fails prints its error, and the other rows run. When `--seconds` are over,
torch.compile is left out of the remaining rows.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
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
    embedding_gradient,
    first_results,
    gelu_chain,
    group_norm,
    layer_norm,
    rms_norm,
    size,
    softmax,
    swiglu,
    times_first,
)
from stator.base import counters

HALF = torch.bfloat16
CALLS, BATCHES = 8, 7  # calls between two events, and how often


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def normalised(rows: int, columns: int, dtype: torch.dtype, count: int = 2, grad: bool = False) -> Arguments:
    return [
        randn(rows, columns, dtype=dtype, grad=grad),
        *(randn(columns, dtype=dtype, grad=grad) for _ in range(count)),
    ]


def logits(rows: int, words: int, grad: bool = False) -> Arguments:
    return [randn(rows, words, dtype=HALF, grad=grad), torch.randint(words, (rows,), device="cuda")]


def images(channels_last: bool = False, grad: bool = False) -> Arguments:
    x = torch.randn(128, 256, 56, 56, device="cuda")
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    return [x.requires_grad_(grad), randn(256, grad=grad), randn(256, grad=grad)]


def features(shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool, grad: bool = True) -> Arguments:
    """Images inside of a diffusion model, and the parameters of a norm."""
    x = randn(*shape, dtype=dtype)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    return [x.requires_grad_(grad), *(randn(shape[1], dtype=dtype, grad=grad) for _ in range(2))]


def group_norm_rows() -> Iterable[Row]:
    """Forward and backward, in both layouts: the first stage of a U-Net, its third one, and a decoder's last one."""
    for shape in ((32, 320, 64, 64), (128, 1280, 16, 16), (4, 128, 512, 512)):
        for dtype in (torch.float32, HALF):
            for last in (False, True):
                kind = f"{'f32' if dtype is torch.float32 else 'bf16'}{' nhwc' if last else ''}"
                yield Row(
                    f"group norm {kind} x{'x'.join(map(str, shape[1:]))} fwd+bwd",
                    group_norm,
                    functools.partial(features, shape, dtype, last),
                    backward=True,
                    bytes_moved=times_first(5),
                )


ROWS = [
    Row("gelu chain f32", gelu_chain, lambda: [randn(8192, 8192), randn(8192), randn(8192, 8192)]),
    Row(
        "gelu chain bf16",
        gelu_chain,
        lambda: [randn(16384, 8192, dtype=HALF), randn(8192, dtype=HALF), randn(16384, 8192, dtype=HALF)],
    ),
    Row("swiglu bf16", swiglu, lambda: [randn(16384, 11008, dtype=HALF), randn(16384, 11008, dtype=HALF)]),
    Row("odd length f32", lambda x: x * 2 + 1, lambda: [randn(67108863)]),
    Row(
        "adam f32",
        adam,
        lambda: [randn(1 << 25), randn(1 << 25), randn(1 << 25), randn(1 << 25).abs()],
        bytes_moved=times_first(7),
    ),
    Row("softmax f32 x1024", softmax, lambda: [randn(65536, 1024)]),
    Row("softmax f32 x4096", softmax, lambda: [randn(16384, 4096)]),
    Row("softmax bf16 x4096", softmax, lambda: [randn(32768, 4096, dtype=HALF)]),
    Row("softmax bf16 x50257", softmax, lambda: [randn(4096, 50257, dtype=HALF)]),
    Row("softmax f32 columns", lambda x: torch.softmax(x, 0), lambda: [randn(4096, 16384)]),
    Row("layer norm bf16", layer_norm, lambda: normalised(32768, 4096, HALF)),
    Row("layer norm f32 x768", layer_norm, lambda: normalised(131072, 768, torch.float32)),
    Row(
        "layer norm bf16 fwd+bwd",
        layer_norm,
        lambda: normalised(32768, 4096, HALF, grad=True),
        backward=True,
        bytes_moved=times_first(5),
    ),
    Row("rms norm bf16", rms_norm, lambda: normalised(32768, 4096, HALF, 1)),
    Row("rms norm bf16 x16384", rms_norm, lambda: normalised(8192, 16384, HALF, 1)),
    Row(
        "rms norm bf16 fwd+bwd",
        rms_norm,
        lambda: normalised(32768, 4096, HALF, 1, grad=True),
        backward=True,
        bytes_moved=times_first(5),
    ),
    Row("cross entropy bf16", F.cross_entropy, lambda: logits(8192, 50257)),
    Row(
        "cross entropy fwd+bwd",
        F.cross_entropy,
        lambda: logits(8192, 50257, grad=True),
        backward=True,
        bytes_moved=times_first(3),
    ),
    Row("sum of all f32", lambda x: x.sum(), lambda: [randn(16384, 8192)]),
    Row("sum of rows f32", lambda x: x.sum(-1), lambda: [randn(16384, 8192)]),
    Row("sum of columns f32", lambda x: x.sum(0), lambda: [randn(16384, 8192)]),
    Row("sum of columns bf16 x1024", lambda x: x.sum(0), lambda: [randn(262144, 1024, dtype=HALF)]),
    Row("sum of middle f32", lambda x: x.sum(1), lambda: [randn(64, 2048, 1024)]),
    Row("sum of few long rows f32", lambda x: x.sum(-1), lambda: [randn(4, 1 << 25)]),
    Row("largest of all f32", lambda x: x.argmax(), lambda: [randn(1 << 27)]),
    Row("variance of columns f32", lambda x: torch.var_mean(x, 0), lambda: [randn(131072, 1024)]),
    Row("batch norm f32", batch_norm, images, bytes_moved=times_first(3)),
    Row(
        "batch norm f32 nhwc",
        batch_norm,
        lambda: images(channels_last=True),
        bytes_moved=times_first(3),
    ),
    Row(
        "batch norm f32 fwd+bwd",
        batch_norm,
        lambda: images(grad=True),
        backward=True,
        bytes_moved=times_first(8),
    ),
    *group_norm_rows(),
    Row(
        "group norm bf16 nhwc",
        group_norm,
        lambda: features((32, 320, 64, 64), HALF, channels_last=True, grad=False),
        bytes_moved=times_first(2),
    ),
    Row("transpose f32", lambda x: (x.t() + 1).contiguous(), lambda: [randn(8192, 16384)]),
    Row("transpose bf16", lambda x: (x.t() + 1).contiguous(), lambda: [randn(16384, 16384, dtype=HALF)]),
    Row("x + y.t() f32", lambda x, y: x + y.t(), lambda: [randn(8192, 8192), randn(8192, 8192)]),
    Row(
        "heads to rows bf16",
        lambda x: (x * 2).transpose(1, 2).contiguous(),
        lambda: [randn(16, 4096, 16, 128, dtype=HALF)],
    ),
    Row(
        "nchw to nhwc f32",
        lambda x: (x + 1).contiguous(memory_format=torch.channels_last),
        lambda: [randn(128, 256, 56, 56)],
    ),
    Row(
        "embedding bf16",
        lambda table, indices: F.embedding(indices, table) * 2,
        lambda: [randn(50304, 2048, dtype=HALF), torch.randint(50304, (65536,), device="cuda")],
        bytes_moved=lambda arguments: 2 * 65536 * 2048 * 2,
    ),
    Row(
        "embedding gradient f32",
        embedding_gradient,
        lambda: [randn(65536, 1024), torch.randint(50304, (65536,), device="cuda")],
        bytes_moved=lambda arguments: size(arguments[0]) + 2 * 50304 * 1024 * 4,
    ),
    Row("cumsum f32", lambda x: x.cumsum(-1), lambda: [randn(16384, 4096)]),
    Row("cumsum f32 columns", lambda x: x.cumsum(0), lambda: [randn(4096, 16384)]),
    Row("cumsum f32 x50257", lambda x: x.cumsum(-1), lambda: [randn(4096, 50257)]),
]


def milliseconds(call: Callable[[], object]) -> float:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(BATCHES):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / CALLS)
    return statistics.median(times)


def measure_row(row: Row, peers: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name}
    call, expected, arguments = first_results(row, row.function)
    moved = row.bytes_moved(arguments) if row.bytes_moved else size(*arguments, *expected)
    found["megabytes"] = moved / 1e6
    found["eager_ms"] = milliseconds(call)
    del call, arguments
    systems = {"stator": stator.compile, **({"compile": torch.compile} if "compile" in peers else {})}
    for system, compile_with in systems.items():
        try:
            counters.clear()
            stator.reset()
            torch.compiler.reset()
            start = time.perf_counter()
            call, results, _ = first_results(row, compile_with(row.function, dynamic=False))
            torch.cuda.synchronize()
            found[f"{system}_first_call_s"] = time.perf_counter() - start
            if system == "stator":
                found["kernels"] = counters.counts["kernels"]
            found[f"{system}_error"], found[f"{system}_tolerance"] = difference(results, expected)
            del results
            found[f"{system}_ms"] = milliseconds(call)
            del call
        except Exception as error:
            found[f"{system}_failure"] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            found[f"{system}_traceback"] = traceback.format_exc()
    return found


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.randn(1 << 27, device="cuda")
    target = torch.empty_like(source)
    return 2 * size(source) / milliseconds(lambda: target.copy_(source)) * 1e3


def line(found: dict[str, Any], bandwidth: float) -> str:
    if "failure" in found:
        return f"{found['name']:38} {found['failure']}"
    columns = [f"{found['name']:38}"]
    for system in ("stator", "eager", "compile"):
        ms = found.get(f"{system}_ms")
        rate = found["megabytes"] / ms if ms else None  # GB/s
        columns.append(f"{rate:6.0f} {rate * 1e9 / bandwidth:5.0%}" if rate else f"{'-':>6} {'-':>5}")
    columns.append(f"{found.get('kernels', 0):3}")
    error = found.get("stator_error")
    if error is not None:
        columns.append(f"{error:.0e}" + ("" if error <= found["stator_tolerance"] else " WRONG"))
    if "stator_failure" in found:
        columns.append(found["stator_failure"][:100])
    return "  ".join(columns)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="rows with one of these words in their names")
    parser.add_argument("--seconds", type=float, default=150, help="when torch.compile is left out of further rows")
    options = parser.parse_args()
    start = time.perf_counter()
    bandwidth = copy_bandwidth()
    device = torch.cuda.get_device_name()
    print(f"{device}, torch {torch.__version__}: a copy moves {bandwidth / 1e9:.0f} GB/s", flush=True)
    print(f"{'GB/s, share of the copy':38}  {'stator':>12}  {'eager':>12}  {'compile':>12}  kernels, difference")
    rows = []
    for row in ROWS:
        if options.only and not any(word in row.name for word in options.only):
            continue
        peers = ["compile"] if time.perf_counter() - start < options.seconds else []
        try:
            found = measure_row(row, peers)
        except Exception as error:
            found = {"name": row.name, "failure": repr(error)[:200], "traceback": traceback.format_exc()}
        rows.append(found)
        print(line(found, bandwidth), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        if options.json:
            written = {"device": device, "torch": torch.__version__, "copy_bytes_per_second": bandwidth, "rows": rows}
            options.json.write_text(json.dumps(written, indent=1))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
