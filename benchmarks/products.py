"""Products of float32 matrices by BLAS, as in eager, and by oneDNN's linear kernel, beside the choice between them
(stator/runtime/matrix_products.py), and by our kernel for few rows: `python -m benchmarks.products --threads 1`.

Weights lie by columns (in a layer's forward) or by rows (in the gradient of its input), and no run finds its weight in
a cache: each has the next of several copies. Times are the least of alternating runs: of the processor with one thread,
else of the clock. "chosen" is the time of the choice over the time of BLAS.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable

import torch

from stator.runtime.few_rows import MOST_ROWS, few_rows_product
from stator.runtime.matrix_products import is_onednn_quicker

ROWS = (1, 4, 8, 16, 32, 64, 128, 197, 256, 1024)
# of T5-small, BERT, GPT-2, ViT, Llama, and their vocabularies
WEIGHTS = (
    *((512, 512), (512, 2048), (2048, 512), (768, 768), (768, 2048), (768, 2304), (768, 3072), (3072, 768)),
    *((1024, 1024), (4096, 4096), (512, 32128), (768, 30522)),
)
_COPIES_BYTES = 64 << 20


def least_seconds(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    least = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < 5 or time.perf_counter() < deadline:
        for name, call in calls.items():
            start = clock()
            call()
            least[name] = min(least[name], clock() - start)
        rounds += 1
    return least


def compared(rows: int, inner: int, columns: int, by_rows: bool, seconds: float) -> tuple[float, float, float | None]:
    """The milliseconds of BLAS, and the times over it of oneDNN and, for few rows, of our kernel."""
    copies = max(4, min(12, _COPIES_BYTES // (4 * inner * columns)))
    shape = (inner, columns) if by_rows else (columns, inner)
    made = [torch.randn(shape) if by_rows else torch.randn(shape).t() for _ in range(copies)]
    weights = itertools.cycle(made)
    x, out = torch.randn(rows, inner), torch.empty(rows, columns)
    linear = torch.ops.mkldnn._linear_pointwise.default._op
    calls: dict[str, Callable[[], object]] = {
        "blas": lambda: torch.mm(x, next(weights), out=out),
        "onednn": lambda: linear(x, next(weights).t(), None, "none", [], ""),
    }
    if rows <= MOST_ROWS and not by_rows:
        calls["few rows"] = lambda: few_rows_product(x, next(weights))
    least = least_seconds(calls, seconds)
    few = least["few rows"] / least["blas"] if "few rows" in least else None
    return 1e3 * least["blas"], least["onednn"] / least["blas"], few


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each size")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    chosen, best = [], []
    for (inner, columns), rows, by_rows in itertools.product(WEIGHTS, ROWS, (False, True)):
        ms, ratio, few = compared(rows, inner, columns, by_rows, given.seconds)
        start = time.perf_counter()
        by_onednn = is_onednn_quicker(rows, inner, columns, by_rows)
        waited = 1e3 * (time.perf_counter() - start)
        chosen.append(ratio if by_onednn else 1.0)
        best.append(min(ratio, 1.0))
        print(
            f"{rows}x{inner}x{columns} by {'rows' if by_rows else 'columns'}: BLAS {ms:.3f} ms, oneDNN {ratio:.2f}, "
            f"chosen {chosen[-1]:.2f} (after {waited:.1f} ms)" + ("" if few is None else f", few rows {few:.2f}"),
            flush=True,
        )
    mean = [math.exp(sum(map(math.log, ratios)) / len(ratios)) for ratios in (chosen, best)]
    print(f"geometric mean: chosen {mean[0]:.3f}, best {mean[1]:.3f}; slowest choice {max(chosen):.2f}")


if __name__ == "__main__":
    main()
