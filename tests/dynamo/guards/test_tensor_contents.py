"""Guards on the contents of tensors fail after writes, by the native check and by the getters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import stator
from stator.base import counters
from stator.dynamo.guards import tensor_guards
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import build_guard_tree, describe_failure
from stator.dynamo.guards.source import LocalSource


def _function(x: torch.Tensor) -> None: ...


@pytest.fixture(params=["native", "getters"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "getters":
        monkeypatch.setattr(tensor_guards, "_install_layout", lambda: False)
    return str(request.param)


def _replace_data(x: torch.Tensor) -> None:
    x.data = x.data.clone()


WRITES: dict[str, Callable[[torch.Tensor], object]] = {
    "in place": lambda x: x.add_(1),
    "view": lambda x: x[1].zero_(),
    "detached": lambda x: x.detach().add_(1),
    "data": lambda x: x.data.add_(1),
    "other data": _replace_data,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("shape", [(4, 5), (4, 1), (7,), (2, 3, 4, 5, 6, 7)])
def test_writes(write: Callable[[torch.Tensor], object], dtype: torch.dtype, shape: tuple[int, ...], way: str) -> None:
    x = torch.ones(shape, dtype=dtype)
    guard = Guard(LocalSource("x"), GuardKind.CONTENT, tensor_guards.content_of(x))
    tree = build_guard_tree([guard], _function)
    assert tree.check((x,), _function)
    x.sum()
    assert tree.check((x,), _function)
    write(x)
    failure = tree.explain((x,), _function)
    assert failure is not None and not tree.check((x,), _function)
    assert "frozen data" in describe_failure([guard], failure)


def test_layouts_with_gaps_have_no_sample() -> None:
    x = torch.ones(6, 6)[:, ::2]
    content = tensor_guards.content_of(x)
    assert content is not None and content.sample == ()
    assert tensor_guards.content_of(torch.ones(())).sample[0][0] == 0  # type: ignore[union-attr]
    assert tensor_guards.content_of(torch.ones(0)).sample == ()  # type: ignore[union-attr]


def test_tensors_made_in_inference_mode_have_no_content() -> None:
    with torch.inference_mode():
        assert tensor_guards.content_of(torch.ones(3)) is None


def test_memo_notices_writes() -> None:
    """After some calls the guards are checked by a memo, which checks contents as well."""
    model = torch.nn.Linear(40, 40).eval()
    frozen = stator.freeze(model)
    x = torch.randn(3, 40)
    for _ in range(6):
        frozen(x)
    before = counters.counts["dynamo.compiled_frames"]
    model.weight.data.mul_(2)
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x))
    assert counters.counts["dynamo.compiled_frames"] == before + 1
