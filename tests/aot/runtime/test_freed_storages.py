"""Parameters whose storages are freed behind each forward and filled again before the backward, as FSDP does it:
compiled code follows them to new addresses, and keeps no copy of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn import functional as F

import stator
from stator.aot.autograd import autograd_step

SIZE = 512
PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, p: (x @ p).relu(),
    "transposed": lambda x, p: F.linear(x, p).relu(),
    "slice": lambda x, p: x[:, ::2] @ p[::2] + p[0],
    "elementwise": lambda x, p: (x * p).exp().sum(-1),
}


@contextmanager
def filled(p: torch.Tensor, contents: torch.Tensor, others: list[torch.Tensor]) -> Iterator[None]:
    """Fill the parameter inside of the context. After that, free it and give its memory to others."""
    p.untyped_storage().resize_(contents.untyped_storage().nbytes())
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(p):
        p.copy_(contents)
    yield
    p.untyped_storage().resize_(0)
    others += [torch.full_like(contents, torch.nan) for _ in range(3)]


def step(program: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    contents = torch.randn(SIZE, SIZE, generator=generator) / SIZE
    # sums over rows are of order 1, and their rounding errors far below the tolerances, also where large terms cancel
    x = (torch.randn(SIZE, SIZE, generator=generator) / SIZE**0.5).requires_grad_()
    p = torch.nn.Parameter(torch.empty(SIZE, SIZE))
    p.untyped_storage().resize_(0)
    found: list[torch.Tensor | None] = []
    others: list[torch.Tensor] = []
    for factor in range(1, 4):
        with filled(p, contents * factor, others):
            result = program(x, p)
        with filled(p, contents * factor, others):
            result.sum().backward()
        with filled(p, contents * factor, others), torch.no_grad():
            found += [result.detach(), program(x, p)]
    return [*found, x.grad, p.grad]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_and_gradients_are_those_of_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the memory is not a replaced one, for which the backward would run operator by operator
    monkeypatch.setattr(autograd_step, "primals_on_old_memory", pytest.fail)
    torch.testing.assert_close(step(stator.compile(PROGRAMS[name])), step(PROGRAMS[name]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_keeps_the_memory_of_a_freed_parameter(name: str) -> None:
    x, p = torch.randn(SIZE, SIZE), torch.nn.Parameter(torch.empty(SIZE, SIZE))
    with filled(p, torch.ones(SIZE, SIZE), []):
        result = stator.compile(PROGRAMS[name])(x, p)
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in result.grad_fn.saved()}  # type: ignore[union-attr]
    for known in (x, result):
        storages.pop(known.untyped_storage()._cdata, None)
    assert sum(storages.values()) < p.numel() * p.element_size()
