"""Products of matrices whose sizes only the run can tell: captured with every version of torch, and as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator

ROWS, MATRIX = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), torch.randn(4, 3)
MASK = torch.tensor([True, False, True, True, False, True])


def found(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x[:, mask]


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "batches": lambda x, mask: torch.matmul(x, found(x, mask).transpose(1, 2)),
    "batches that are broadcast": lambda x, mask: x.unsqueeze(1) @ found(x, mask).mT.unsqueeze(0),
    "one matrix": lambda x, mask: found(x, mask) @ MATRIX,
    "one matrix first": lambda x, mask: MATRIX.mT.matmul(found(x, mask).mT),
    "one vector": lambda x, mask: found(x, mask).matmul(MATRIX[:, 0]),
    "a linear layer": lambda x, mask: torch.nn.functional.linear(found(x, mask), MATRIX.mT, MATRIX[0]),
    "a linear layer without bias": lambda x, mask: torch.nn.functional.linear(found(x, mask).unsqueeze(0), MATRIX.mT),
    "inside": lambda x, mask: found(x, mask).mT @ found(x, mask),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_products(name: str, backend: str) -> None:
    program = PROGRAMS[name]
    compiled = stator.compile(program, backend=backend, fullgraph=backend == "eager")
    for mask in (MASK, ~MASK, torch.ones_like(MASK)):
        torch.testing.assert_close(compiled(ROWS, mask), program(ROWS, mask), rtol=1e-6, atol=1e-6)


def test_what_does_not_fit_is_the_error_of_eager() -> None:
    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return found(x, mask) @ x

    compiled = stator.compile(program, backend="eager")
    with pytest.raises(RuntimeError) as expected:
        program(ROWS, MASK)
    with pytest.raises(RuntimeError) as actual:
        compiled(ROWS, MASK)
    assert str(actual.value) == str(expected.value)
