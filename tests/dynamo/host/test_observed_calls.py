"""Who counts or traces the operators of a program sees them as in eager, also where a compiled function is called."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import stator

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Operators(TorchDispatchMode):
    """Notes the operators that are called below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU())


@pytest.fixture(params=["compiled before", "first called there"])
def compiled(request: pytest.FixtureRequest) -> nn.Module:
    compiled = stator.compile(model())
    if request.param == "compiled before":
        compiled(X)
    return compiled


def test_a_dispatch_mode_sees_the_operators_of_the_program(compiled: nn.Module) -> None:
    plain = model()
    with Operators() as expected:
        wanted = plain(X)
    with Operators() as found:
        result = compiled(X)
    assert found.names == expected.names
    torch.testing.assert_close(result, wanted, rtol=0, atol=0)


def test_outside_of_it_compiled_code_is_used_again(compiled: nn.Module) -> None:
    with Operators():
        compiled(X)
    compiled(X)
    with stator.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(X), model()(X))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_jit_trace_traces_the_program(compiled: nn.Module) -> None:
    traced = torch.jit.trace(compiled, X)
    torch.testing.assert_close(traced(X + 1), model()(X + 1))


def test_make_fx_traces_the_program(compiled: nn.Module) -> None:
    with torch.no_grad():
        traced = make_fx(compiled)(X)
    assert "aten.addmm" in traced.code
    torch.testing.assert_close(traced(X + 1), model()(X + 1))
