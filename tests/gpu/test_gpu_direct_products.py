"""Products that call cuBLASLt without ATen, beside ATen: layouts, streams, threads, recordings, programs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.device import DEVICE, only_cuda

import stator
from stator.runtime.cuda import driver, products

pytestmark = only_cuda

USUAL = {"aten.mm.out": torch.mm, "aten.addmm.out": torch.addmm, "aten.bmm.out": torch.bmm}


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the library was not called")


def direct(name: str) -> Callable[..., Any]:
    """The product, which fails where it would call ATen."""
    device = torch.device("cuda", 0)
    assert products.direct_product(name, refuse, device) is not refuse
    return products.make_product(driver.open_driver(), name, refuse, device)


def matrix(*size: int, transposed: bool, dtype: torch.dtype) -> torch.Tensor:
    if transposed:
        return torch.randn(*size[:-2], size[-1], size[-2], device=DEVICE, dtype=dtype).mT
    return torch.randn(*size, device=DEVICE, dtype=dtype)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return ((actual.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("name", USUAL)
@pytest.mark.parametrize(
    "size", [(128, 768, 768), (128, 3072, 768), (1, 64, 64), (17, 33, 65), (2048, 512, 1024), (3, 1, 8)]
)
def test_products_are_as_exact_as_those_of_aten(name: str, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, depth, columns = size
    lead = (3,) if name == "aten.bmm.out" else ()
    with_bias = name == "aten.addmm.out"
    if with_bias and (columns % 8 or depth % 8):
        pytest.skip("ATen computes products of odd rows with a bias")
    for layout in range(4):
        a = matrix(*lead, rows, depth, transposed=bool(layout & 1) and rows % 8 == 0, dtype=dtype)
        b = matrix(*lead, depth, columns, transposed=bool(layout & 2), dtype=dtype)
        bias = torch.randn(columns, device=DEVICE, dtype=dtype)
        args = (bias, a, b) if with_bias else (a, b)
        out = torch.full((*lead, rows, columns), float("nan"), device=DEVICE, dtype=dtype)
        direct(name)(*args, out=out)
        exact = a.double() @ b.double() + (bias.double() if with_bias else 0)
        assert error(out, exact) <= 1.2 * error(USUAL[name](*args), exact) + 1e-9


def test_a_product_waits_for_the_work_of_its_stream() -> None:
    a, b = (torch.randn(2048, 2048, device=DEVICE).bfloat16() for _ in range(2))
    expected, out = (a + 1) @ b, torch.empty_like(a)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        direct("aten.mm.out")(a + 1, b, out=out)
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(out, expected)


def test_threads() -> None:
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def work(at: int) -> None:
        a, b = (
            torch.randn(64, 64 * (at + 1), device=DEVICE).half(),
            torch.randn(64 * (at + 1), 128, device=DEVICE).half(),
        )
        out = torch.empty(64, 128, device=DEVICE, dtype=torch.half)
        for _ in range(50):
            direct("aten.mm.out")(a, b, out=out)
        found[at] = out, a @ b

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for out, expected in found.values():
        torch.testing.assert_close(out, expected)


def test_products_in_a_recording_of_the_program() -> None:
    """Also of a shape that the library meets for the first time."""
    product, b = direct("aten.mm.out"), torch.randn(264, 392, device=DEVICE).bfloat16()
    a, out = torch.randn(72, 264, device=DEVICE).bfloat16(), torch.empty(72, 392, device=DEVICE).bfloat16()
    torch.mm(a[:8], b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product(a, b, out=out)
    for _ in range(2):
        a.normal_()
        graph.replay()
        torch.testing.assert_close(out, a @ b)


def test_compiled_programs_call_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    usual = products.make_product

    def noted(extension: Any, name: str, *rest: Any) -> Any:
        made.append(name)
        return usual(extension, name, *rest)

    monkeypatch.setattr(products, "make_product", noted)
    layer = (
        torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)).to(DEVICE).bfloat16()
    )
    x = torch.randn(32, 64, device=DEVICE).bfloat16()
    compiled = stator.compile(layer)
    with torch.no_grad():
        exact = copy.deepcopy(layer).double()(x.double())
        for _ in range(3):
            assert error(compiled(x), exact) <= 1.2 * error(layer(x), exact)
    assert made and {*made} <= {*USUAL}
