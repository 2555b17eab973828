"""Tensors made in inference mode, in compiled code outside of it: written to and differentiated past as in eager."""

from __future__ import annotations

import pytest
import torch

import stator

BACKENDS = ("eager", "aot_eager", "inductor")


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(3.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("compiled_before", [False, True])
def test_writing_to_one_outside_of_the_mode_is_refused(backend: str, compiled_before: bool) -> None:
    compiled, x = stator.compile(lambda x: x.add_(1), backend=backend), made_in_inference_mode()
    if compiled_before:
        compiled(torch.zeros(3))
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        compiled(x)
    x = made_in_inference_mode()  # eager writes to the tensor before it refuses
    with torch.inference_mode():
        assert compiled(x) is x
    assert torch.equal(x, torch.arange(3.0) + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_beside_one(backend: str) -> None:
    x, w = made_in_inference_mode(), torch.ones(3, requires_grad=True)
    compiled = stator.compile(lambda x, w: (x + w).sin().sum(), backend=backend)
    (found,) = torch.autograd.grad(compiled(x, w), w)
    torch.testing.assert_close(found, (x.clone() + 1).cos())
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        stator.compile(lambda x, w: (x * w).sum(), backend=backend)(x, w)
