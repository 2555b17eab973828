"""Memory-bound graphs on a GPU: bandwidth of stator's kernels beside torch eager and torch.compile.

Run as `python -m benchmarks.gpu_kernels [--json FILE] [--only WORD ...] [--seconds S]`. The bytes of a row are the
fewest that its function must move: each input read once, each output written once. The share compares with a copy that
is measured in the same run. A row that fails prints its error, and the other rows run. When `--seconds` are over,
torch.compile is left out of the remaining rows.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import stator
from stator.base import counters

Arguments = list[torch.Tensor]
HALF = torch.bfloat16
CALLS, BATCHES = 8, 7  # calls between two events, and how often
# Results are compared with eager's: ‖out - eager‖ / ‖eager‖
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float64: 1e-9}


@dataclass(frozen=True)
class Row:
    """backward: gradients of all arguments that require them are part of the measured call. bytes_moved: the fewest
    bytes, where they are not those of all arguments and results."""

    name: str
    function: Callable[..., Any]
    make: Callable[[], Arguments]
    backward: bool = False
    bytes_moved: Callable[[Arguments], int] | None = None


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def times_first(count: float) -> Callable[[Arguments], int]:
    return lambda arguments: int(count * size(arguments[0]))


def gelu_chain(x: torch.Tensor, bias: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x + bias) * y + x


def swiglu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.silu(x) * y


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def embedding_gradient(grad: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(grad, indices, 50304, -1, False)


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


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


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


def caller(row: Row, function: Callable[..., Any], arguments: Arguments) -> Callable[[], list[torch.Tensor]]:
    """The measured call, which returns its results."""
    wanted = [argument for argument in arguments if argument.requires_grad]
    seed: list[torch.Tensor] = []

    def call() -> list[torch.Tensor]:
        result = function(*arguments)
        results = [result] if isinstance(result, torch.Tensor) else list(result or ())
        if not row.backward:
            return results
        if not seed:  # all of one sign, so that sums do not cancel
            generator = torch.Generator("cuda").manual_seed(1)
            seed.append(torch.rand(results[0].shape, device="cuda", generator=generator).to(results[0].dtype))
        return [results[0].detach(), *torch.autograd.grad(results[0], wanted, seed[0])]

    return call


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


def difference(actual: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> tuple[float, float]:
    """The largest relative difference, and the tolerance of its dtype."""
    worst, allowed = 0.0, 1.0
    for one, other in zip(actual, expected, strict=True):
        if not other.is_floating_point():
            distance, tolerance = float((one != other).sum()), 0.5
        else:
            norm = torch.linalg.vector_norm(other.detach().float())
            gap = torch.linalg.vector_norm(one.detach().float() - other.detach().float())
            distance, tolerance = float(gap / norm.clamp(min=1e-30)), TOLERANCES[other.dtype]
        if not distance / tolerance <= worst / allowed:  # also where the distance is NaN
            worst, allowed = distance, tolerance
    return worst, allowed


def first_results(row: Row, function: Callable[..., Any]) -> tuple[Callable[[], object], list[torch.Tensor], Arguments]:
    """(call, results of the first call with the contents that it left in the arguments, arguments)."""
    torch.manual_seed(0)
    arguments = row.make()
    call = caller(row, function, arguments)
    results = call()
    if not results:
        results = [argument.clone() for argument in arguments]
    return call, results, arguments


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
        return f"{found['name']:26} {found['failure']}"
    columns = [f"{found['name']:26}"]
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
    print(f"{'GB/s, share of the copy':26}  {'stator':>12}  {'eager':>12}  {'compile':>12}  kernels, difference")
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
