"""Which kernels of attention are allowed: set and asked for in captured code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import stator


def one_kernel(q: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        inside = scaled_dot_product_attention(q, q, q, is_causal=True)
    return inside + scaled_dot_product_attention(q, q, q)


def several(q: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True):
        return scaled_dot_product_attention(q, q, q)


def by_flags(q: torch.Tensor) -> Any:
    before = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    result = scaled_dot_product_attention(q, q, q)
    during = torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(before)
    return result, before, during


def chosen(q: torch.Tensor, kernel: SDPBackend) -> torch.Tensor:
    with sdpa_kernel(kernel):
        return scaled_dot_product_attention(q, q, q)


def switches() -> tuple[bool, bool, bool]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()


def given() -> torch.Tensor:
    return torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


@pytest.mark.parametrize("program", [one_kernel, several, by_flags])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_they_are_chosen_in_one_graph(program: Any, backend: str) -> None:
    before = switches()
    compiled = stator.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(given()), program(given()), rtol=1e-4, atol=1e-5)
        assert switches() == before


def test_the_graph_sets_them_where_the_program_does() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        class Watching(torch.fx.Interpreter):
            def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
                if target is scaled_dot_product_attention:
                    seen.append(switches())
                return super().call_function(target, args, kwargs)

        return lambda *args: Watching(graph).run(*args)

    q = given()
    torch.testing.assert_close(stator.compile(one_kernel, backend=backend, fullgraph=True)(q), one_kernel(q))
    assert seen == [(False, True, False), switches()]


def test_another_kernel_compiles_anew() -> None:
    compiled = stator.compile(chosen, backend="eager", fullgraph=True)
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        torch.testing.assert_close(compiled(given(), kernel), chosen(given(), kernel))


def test_switches_that_the_program_reads_are_relied_on() -> None:
    compiled = stator.compile(by_flags, backend="eager", fullgraph=True)
    for enabled in (True, False, True):
        torch.backends.cuda.enable_flash_sdp(enabled)
        try:
            assert compiled(given())[1:] == (enabled, False)
        finally:
            torch.backends.cuda.enable_flash_sdp(True)
