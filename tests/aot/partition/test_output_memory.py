"""Through the whole compiler: results share memory with nothing that they do not share it with in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "copy of an input": lambda x: torch.empty(12).copy_(x.view(-1)),
    "view of a copy of an input": lambda x: torch.empty(3, 4).copy_(x)[:, 1:],
    "a value and its copy": lambda x: (lambda y: (y, torch.empty(3, 4).copy_(y)))(x + 1),
    "clone": lambda x: x.clone(),
    "view of a clone": lambda x: x.clone().t(),
    "view of a product with one": lambda x: (x * 1).view(-1),
    "two clones": lambda x: (x.clone(), x.clone()),
    "equal values": lambda x: (x + 1, x + 1),
    "views of equal values": lambda x: ((x + 1)[0], (x + 1)[0]),
    "a value and the view of an equal one": lambda x: (x + 1, (x + 1)[0]),
    "equal ones of several results": lambda x: (x.topk(2)[0], x.topk(2)[0]),
    "views of equal ones of several results": lambda x: (x.sort()[0][:2], x.sort()[0].t()),
    "equal normalisations": lambda x: (torch.layer_norm(x, (4,)), torch.layer_norm(x, (4,))),
    "constant": lambda x: torch.tensor([1.0, 2.0]),
    "equal constants": lambda x: (torch.zeros(3), torch.zeros(3)),
    "constant that is also used": lambda x: (lambda c: (c[1:], x + c))((torch.arange(4) * 2 + 1).float() * 3 - 1),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_have_memory_of_their_own(name: str, backend: str) -> None:
    stator.reset()
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = stator.compile(FUNCTIONS[name], fullgraph=True, backend=backend)
        expected = _tensors(FUNCTIONS[name](x))
        first, second = _tensors(compiled(x)), _tensors(compiled(x))
    storages = [tensor.untyped_storage()._cdata for tensor in (x, *first, *second)]
    assert len(set(storages)) == len(storages)
    for result, reference in zip(first, expected, strict=True):
        torch.testing.assert_close(result, reference, check_stride=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["equal values", "equal ones of several results", "equal normalisations"])
def test_results_that_require_grad_have_memory_of_their_own(name: str, backend: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    first, second = stator.compile(FUNCTIONS[name], fullgraph=True, backend=backend)(x)
    with torch.no_grad():
        kept = second.clone()
        first.zero_()
    torch.testing.assert_close(second, kept, rtol=0, atol=0)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)
