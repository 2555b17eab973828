"""Which kernels of attention are allowed: set and asked for in captured code."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import pytest
import torch
from tests.differential import Counts
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import stator
from stator.graph.operators import attention_settings


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


def test_settings_around_the_call_are_relied_on() -> None:
    """The compiled graph names the kernel that the settings choose."""
    compiled, counts = stator.compile(lambda q: scaled_dot_product_attention(q, q, q) * 2), Counts()
    for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(kernel), torch.no_grad():
            torch.testing.assert_close(compiled(given()), scaled_dot_product_attention(given(), given(), given()) * 2)
    assert counts.graphs == 2


@pytest.mark.parametrize("forward, backward", [(SDPBackend.MATH, None), (None, SDPBackend.MATH)])
def test_a_backward_for_one_input_has_the_kernel_of_its_forward(
    forward: SDPBackend | None, backward: SDPBackend | None
) -> None:
    """It is traced when it first runs, where other kernels may be allowed."""

    def allowed(kernel: SDPBackend | None) -> Any:
        return contextlib.nullcontext() if kernel is None else sdpa_kernel(kernel)

    def gradient(function: Any) -> torch.Tensor:
        q, k, v = (given() for _ in range(3))
        with allowed(forward):
            result = function(q, k, v)
        with allowed(backward):
            return torch.autograd.grad(result.sum(), [k])[0]

    def program(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v) * torch.arange(8)

    torch.testing.assert_close(gradient(stator.compile(program)), gradient(program), rtol=1e-4, atol=1e-5)


def test_an_order_that_torch_sets_by_itself_is_not_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch sets the order of kernels when it first chooses one on a GPU: before the capture, and not as an effect."""
    given_order, of_gpus = torch._C._get_sdp_priority_order(), [3, 1, 2, 0, 4]

    def choose(device: torch.device) -> None:
        torch._C._set_sdp_priority_order(of_gpus)

    monkeypatch.setattr(attention_settings, "_order_is_settled", False)
    monkeypatch.setattr(attention_settings, "_choose_a_kernel", choose)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(torch._C._get_sdp_priority_order())
        assert {node.target for node in graph.graph.nodes if node.op == "call_function"} == {operator.mul}
        return graph.forward

    try:
        stator.compile(lambda x: x * 2, backend=backend)(torch.ones(3))
        assert seen == [of_gpus] and torch._C._get_sdp_priority_order() == of_gpus
    finally:
        torch._C._set_sdp_priority_order(given_order)
