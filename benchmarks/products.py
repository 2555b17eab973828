"""Matrix products by BLAS and by oneDNN's linear kernel, alternating: the figures behind the choice in
stator/runtime/matrix_products.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

SHAPES = (
    (4, 512, 512),
    (12, 64, 64),
    (49, 49, 32),
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 30522),
    (3136, 96, 288),
)


def median_ms(calls: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(samples) for name, samples in times.items()}


@torch.no_grad()
def main() -> None:
    linear = torch.ops.mkldnn._linear_pointwise.default
    for rows, inner, columns in SHAPES:
        x, weight, bias = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(columns)
        out, by_rows = torch.empty(rows, columns), torch.randn(inner, columns)
        ms = median_ms(
            {
                "blas": lambda x=x, w=weight, b=bias, o=out: torch.addmm(b, x, w.t(), out=o),
                "onednn": lambda x=x, w=weight, b=bias: linear(x, w, b, "none", [], ""),
                "blas, by rows": lambda x=x, m=by_rows, b=bias, o=out: torch.addmm(b, x, m, out=o),
                "onednn, by rows": lambda x=x, m=by_rows, b=bias: linear(x, m.t(), b, "none", [], ""),
            }
        )
        print(f"{rows}x{inner}x{columns}:", ", ".join(f"{name} {one:.3f} ms" for name, one in ms.items()))


if __name__ == "__main__":
    main()
