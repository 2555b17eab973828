"""What benchmarks of single memory-bound graphs share: the functions, how they are called, and how results are compared
with eager's. gpu_kernels.py and cpu_kernels.py make the arguments and measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Arguments = list[torch.Tensor]
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


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 32, weight, bias)


def embedding_gradient(grad: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(grad, indices, 50304, -1, False)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


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
            device = results[0].device
            generator = torch.Generator(device).manual_seed(1)
            seed.append(torch.rand(results[0].shape, device=device, generator=generator).to(results[0].dtype))
        return [results[0].detach(), *torch.autograd.grad(results[0], wanted, seed[0])]

    return call


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
