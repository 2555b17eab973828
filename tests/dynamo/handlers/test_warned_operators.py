"""What torch warns of in C++, while an operator runs, is said by compiled code as often as in eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator

Program = Callable[[torch.Tensor], Any]

WARNED: dict[str, Program] = {
    "std": lambda x: torch.std(x[:1]) * 2,
    "var": lambda x: torch.var(x[None], dim=0) * 2,
    "var_mean": lambda x: torch.var_mean(x, correction=4)[0] * 2,
    "index": lambda x: x[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)] * 2,
    "where": lambda x: torch.where(torch.ones(4, dtype=torch.uint8), x, x) * 2,
    "to": lambda x: torch.complex(x, x).to(torch.float32) * 2,
    "copy_": lambda x: torch.empty(4).copy_(torch.complex(x, x)) * 2,
    "cholesky": lambda x: torch.cholesky(torch.eye(2) * x[0]) * 2,
}
SILENT: dict[str, Program] = {
    "std": lambda x: torch.std(x[:2]) * 2,
    "var of one element": lambda x: torch.var(x[None], dim=0, correction=0) * 2,
    "real part": lambda x: torch.complex(x, x).real.to(torch.float64) * 2,
}


@pytest.fixture(autouse=True)
def warn_each_time() -> Iterator[None]:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def said(program: Program) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            program(torch.arange(1.0, 5.0))
    return [str(warning.message).partition("(Triggered")[0] for warning in heard]


@pytest.mark.parametrize("name", WARNED)
def test_warnings_are_those_of_eager(name: str) -> None:
    expected = said(WARNED[name])
    assert expected and said(stator.compile(WARNED[name], backend="aot_eager")) == expected


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_torch_says_nothing_of_stays_in_the_graph(name: str, dynamic: bool) -> None:
    compiled = stator.compile(SILENT[name], backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x = torch.arange(1.0, 5.0)
    torch.testing.assert_close(compiled(x), SILENT[name](x), equal_nan=True)
