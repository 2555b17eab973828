"""Convolutions of float32 images by the library and as products, beside the choices of lowering: `python -m
benchmarks.convolutions --threads 1`.

- "one tap": the library's convolution in NCHW, and in NHWC, beside a product of all positions in NHWC by oneDNN's
  linear kernel, which runtime/pointwise_convolutions.py chooses by timing, and by BLAS.
- "gradient of weights": the library's, in NCHW and in NHWC, beside a product of the gradient and the windows, which
  `has_more_weights_than_windows` (lower/operators/patches.py) chooses by sizes.

Times are lower quartiles of alternating runs: of the processor with one thread, else of the clock. Images in NCHW are
asked for where there are several; a single one is one product in NCHW, too. "loss" is the time of
the choice over the better one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import torch
from torch.nn import functional

from benchmarks.measure import steady_state
from stator.runtime import choices
from stator.runtime.pointwise_convolutions import is_product_quicker

# images, channels, channels of the result, rows of an image
ONE_TAP = (
    *((1, 512, 2048, 7), (1, 1024, 256, 14), (1, 64, 256, 56), (1, 96, 24, 14), (1, 64, 64, 20), (2, 512, 2048, 7)),
    *((2, 2048, 512, 7), (2, 256, 1024, 14), (2, 512, 128, 28), (2, 64, 256, 56), (2, 64, 128, 14), (2, 960, 160, 7)),
    *((8, 512, 2048, 7), (8, 2048, 512, 7), (8, 1024, 256, 14), (8, 512, 128, 28), (8, 64, 256, 56), (8, 256, 64, 56)),
    *((8, 96, 24, 14), (8, 64, 64, 20), (16, 192, 64, 8)),
)
# images, channels, channels of the result, rows of an image, rows of the kernel, stride
WEIGHTS = (
    *((1, 512, 512, 7, 3, 1), (2, 512, 512, 7, 3, 1), (4, 512, 512, 7, 3, 1), (8, 512, 512, 7, 3, 1)),
    *((16, 512, 512, 7, 3, 1), (2, 256, 256, 7, 3, 1), (2, 64, 128, 7, 3, 1), (2, 512, 512, 14, 3, 2)),
    *((2, 256, 512, 14, 3, 2), (1, 256, 256, 14, 3, 1), (2, 256, 256, 14, 3, 1), (2, 448, 384, 8, 3, 1)),
    *((2, 512, 512, 4, 3, 1), (16, 512, 512, 4, 3, 1), (32, 256, 256, 4, 3, 1), (2, 512, 512, 7, 5, 1)),
    *((2, 128, 128, 28, 3, 1), (2, 64, 64, 14, 3, 1)),
)

Calls = dict[str, Callable[[], object]]
_LAST = torch.channels_last


def one_tap(images: int, channels: int, out: int, side: int) -> Calls:
    x, weight, bias = torch.randn(images, channels, side, side), torch.randn(out, channels), torch.randn(out)
    last, kernel = x.contiguous(memory_format=_LAST), weight[:, :, None, None]
    rows = last.permute(0, 2, 3, 1).view(-1, channels)
    made = torch.empty(len(rows), out)
    linear = torch.ops.mkldnn._linear_pointwise.default._op
    return {
        "NCHW": lambda: torch.conv2d(x, kernel, bias),
        "NHWC": lambda: torch.conv2d(last, kernel, bias),
        "product": lambda: linear(rows, weight, bias, "none", [], ""),
        "BLAS": lambda: torch.addmm(bias, rows, weight.t(), out=made),
    }


def gradient_of_weights(images: int, channels: int, out: int, side: int, taps: int, stride: int) -> Calls:
    padding = taps // 2
    x, weight = torch.randn(images, channels, side, side), torch.randn(out, channels, taps, taps)
    grad = torch.randn_like(functional.conv2d(x, weight, None, stride, padding))
    given = [one.contiguous(memory_format=_LAST) for one in (grad, x, weight)]
    steps = (None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1, [False, True, False])
    library = torch.ops.aten.convolution_backward.default._op

    def product(grad: torch.Tensor, x: torch.Tensor, is_last: bool) -> torch.Tensor:
        padded = functional.pad(x, (padding,) * 4)
        windows = padded.unfold(2, taps, stride).unfold(3, taps, stride)
        if is_last:
            rows = windows.permute(0, 2, 3, 4, 5, 1).reshape(-1, weight[0].numel())
            return grad.permute(1, 0, 2, 3).reshape(out, -1) @ rows
        columns = windows.permute(1, 4, 5, 0, 2, 3).reshape(weight[0].numel(), -1)
        return grad.permute(1, 0, 2, 3).reshape(out, -1) @ columns.t()

    return {
        "NCHW": lambda: library(grad, x, weight, *steps),
        "product": lambda: product(grad, x, False),
        "NHWC": lambda: library(*given, *steps),
        "product NHWC": lambda: product(given[0], given[1], True),
    }


def milliseconds(calls: Calls, seconds: float) -> dict[str, float]:
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = steady_state(calls, seconds=seconds, least=5, clock=clock)
    return {name: 1e3 * sorted(samples)[len(samples) // 4] for name, samples in times.items()}


def row(name: str, times: dict[str, float], library: str, product: str, is_chosen: bool) -> float:
    """Prints the row of a table; returns the time of the choice over the better one."""
    loss = times[product if is_chosen else library] / min(times[library], times[product])
    chosen = "product" if is_chosen else "library"
    both = "".join(f" {name} {times[name]:8.3f}" for name in (library, product))
    print(f"{name:28}{both}  {chosen}  {loss:.2f}", flush=True)
    return loss


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    choices.PATIENCE_SECONDS = math.inf  # several processes would time as much
    asked = {sizes: {last: is_chosen_for(*sizes, last) for last in (sizes[0] == 1, True)} for sizes in ONE_TAP}
    losses: dict[str, list[float]] = {}
    print("sizes, milliseconds of the library and of the product, choice, loss")
    for sizes in ONE_TAP:
        times = milliseconds(one_tap(*sizes), given.seconds)
        for last, is_chosen in asked[sizes].items():
            library = "NHWC" if last else "NCHW"
            kept = losses.setdefault(f"one tap, {library}", [])
            kept.append(row(f"{sizes}", times, library, "product", is_chosen))
        print(f"{'':28} BLAS {times['BLAS']:8.3f}")
    for sizes in WEIGHTS:
        times = milliseconds(gradient_of_weights(*sizes), given.seconds)
        images, _, out, side, _, stride = sizes
        is_chosen = images * math.ceil(side / stride) ** 2 <= out
        for library, product in (("NCHW", "product"), ("NHWC", "product NHWC")):
            kept = losses.setdefault(f"gradient of weights, {library}", [])
            kept.append(row(f"{sizes}", times, library, product, is_chosen))
    for name, kept in losses.items():
        mean = math.exp(sum(map(math.log, kept)) / len(kept))
        print(f"{name}: geometric mean of losses {mean:.3f}, worst {max(kept):.2f}")


def is_chosen_for(images: int, channels: int, out: int, side: int, channels_last: bool) -> bool:
    start = time.perf_counter()
    answer = is_product_quicker(images, side * side, channels, out, channels_last)
    waited = 1e3 * (time.perf_counter() - start)
    print(f"{(images, channels, out, side)} in {'NHWC' if channels_last else 'NCHW'}: {answer}, after {waited:.1f} ms")
    return answer


if __name__ == "__main__":
    main()
