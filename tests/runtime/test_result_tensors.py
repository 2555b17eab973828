"""Whether tensors are used, told by reference counts, and further tensors of a tensor's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stator.runtime import launch
from stator.runtime.autograd_state import below_autograd

pytestmark = pytest.mark.skipif(launch.step_forward is None, reason="needs the C extension and a known layout")


def _kept_by_autograd(tensor: torch.Tensor) -> Any:
    return (torch.ones(2, 3, requires_grad=True) * tensor).grad_fn


USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "the tensor": lambda tensor: tensor,
    "a view": lambda tensor: tensor[1:],
    "an alias": torch.Tensor.detach,
    "the storage": torch.Tensor.untyped_storage,
    "an array": torch.Tensor.numpy,
    "a node": _kept_by_autograd,
    "a capsule": torch.utils.dlpack.to_dlpack,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_use_is_told_while_it_lasts(use: Callable[[torch.Tensor], Any]) -> None:
    tensors = [torch.randn(2, 3) for _ in range(3)]
    storages = [tensor.untyped_storage() for tensor in tensors]
    rest = launch.uses(tensors, storages)
    assert launch.uses_are(tensors, storages, rest)
    user = use(tensors[1])
    assert not launch.uses_are(tensors, storages, rest)
    del user
    assert launch.uses_are(tensors, storages, rest)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "other memory": lambda tensor: tensor.set_(torch.zeros(2, 3)),
    "data": lambda tensor: setattr(tensor, "data", torch.zeros(2, 3)),
    "a layout": torch.Tensor.t_,
    "gradients": torch.Tensor.requires_grad_,
    "a size": lambda tensor: tensor.resize_(3),
    "more memory": lambda tensor: tensor.untyped_storage().resize_(4096),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_told(change: Callable[[torch.Tensor], Any]) -> None:
    tensors = [torch.randn(2, 3)]
    storages = [tensors[0].untyped_storage()]
    rest = launch.uses(tensors, storages)
    change(tensors[0])
    assert not launch.uses_are(tensors, storages, rest)


def test_uses_of_other_lists() -> None:
    tensors = [torch.randn(2, 3)]
    storages = [tensors[0].untyped_storage()]
    assert not launch.uses_are(tensors, storages, b"")
    for wrong in ((tensors, []), (tuple(tensors), storages), ([1], storages)):
        with pytest.raises(TypeError):
            launch.uses(*wrong)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(()),
        torch.randn(3, 4)[1:, ::2],
        torch.randn(2, 1, 2, 1, 2, 3, 2).transpose(0, 5),
        torch.randn(0, 3),
        torch.randn(1, 4).expand(3, 4),
        torch.ones(5, dtype=torch.bfloat16)[2:],
    ],
    ids=lambda tensor: str(tuple(tensor.shape)),
)
def test_aliases(tensor: torch.Tensor) -> None:
    items = ["first", None, "last"]
    with below_autograd():
        first, alias, last = launch.with_aliases(items, [1], [tensor])
    assert (first, last) == ("first", "last") and items[1] is None
    assert alias is not tensor and type(alias) is torch.Tensor and torch.equal(alias, tensor)
    assert alias.data_ptr() == tensor.data_ptr() and alias.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    assert (alias.stride(), alias.dtype, alias.device) == (tensor.stride(), tensor.dtype, tensor.device)
    assert launch.dispatch_keys(alias) == launch.dispatch_keys(torch.empty_like(tensor))
    assert not alias.requires_grad and not alias._is_view()
    version = tensor._version
    torch.autograd.graph.increment_version(alias)
    assert tensor._version == version
    alias.resize_(1)  # which `detach` under autograd forbids


def test_aliases_at_wrong_places() -> None:
    with pytest.raises(IndexError):
        launch.with_aliases([None], [1], [torch.ones(1)])
