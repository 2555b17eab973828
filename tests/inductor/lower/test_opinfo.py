"""Torch's own sample inputs through passes, lowering and the reference interpreters equal eager, strides included."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.inductor.lowered_evaluator import run
from tests.opinfo.samples import OPERATORS, samples
from torch.utils import _pytree as pytree

from stator.base.errors import StatorError
from stator.graph.tracing.tracer import trace
from stator.inductor.lower import can_lower, lower, verify_lowered
from stator.inductor.passes import run_passes

SAMPLES = 3
RANDOM = (
    "rand", "bernoulli", "multinomial", "dropout", "normal", "exponential", "cauchy", "geometric", "uniform", "poisson",
    "fractional_max_pool", "multi_head_attention", "scaled_dot_product_attention", "empty",
)  # fmt: skip
# Results that eager itself does not determine: bases, pivots
UNDETERMINED = ("svd", "eig", "lstsq", "lu", "qr", "pca", "pinv", "matrix_rank", "ormqr", "householder")
# their shape rules promise sizes that depend on the mode, or other strides than eager's
KNOWN = ("embedding_bag", "nonzero_static")

OPS = [op for op in OPERATORS if not any(word in op.name for word in (*RANDOM, *UNDETERMINED, *KNOWN, "fft"))]
SHARDS = 16


def call_of(op, first, args, kwargs):
    """The tensors of a sample, and a function of them alone."""
    leaves, spec = pytree.tree_flatten((first, list(args), kwargs))
    where = [at for at, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        filled = list(leaves)
        for at, tensor in zip(where, tensors, strict=True):
            filled[at] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op(first, *args, **kwargs)

    return [leaves[at].detach() for at in where], function


def difference(op, first, args, kwargs) -> str | None:
    """What is wrong, "" when nothing is, None when there was nothing to compare."""
    inputs, function = call_of(op, first, args, kwargs)
    if any(tensor.layout is not torch.strided for tensor in inputs):
        return None
    try:
        expected = pytree.tree_leaves(function(*[tensor.clone() for tensor in inputs]))
        traced = trace(function, inputs, keep=can_lower)
    except (StatorError, RuntimeError, TypeError, ValueError, IndexError):
        return None  # eager's or the tracer's matter
    expected = [value for value in expected if isinstance(value, torch.Tensor)]
    if not traced.is_plain:
        return None
    lowered = lower(run_passes(traced.graph))
    verify_lowered(lowered)
    actual = run(lowered, inputs)
    if len(actual) != len(expected):
        return None
    for got, want in zip(actual, expected, strict=True):
        try:
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5, equal_nan=True)
        except AssertionError as error:
            return str(error)
        strides = zip(got.stride(), want.stride(), want.shape, strict=True)
        if want.numel() and any(a != b for a, b, size in strides if size != 1):
            return f"strides {got.stride()} instead of {want.stride()} for {tuple(want.shape)}"
    return ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_lowered_samples_equal_eager(shard, dtype):
    wrong, compared = {}, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in OPS[shard::SHARDS]:
            if dtype in op.supported_dtypes("cpu"):
                torch.manual_seed(0)
                for first, args, kwargs in samples(op, SAMPLES, (dtype,)):
                    found = difference(op, first, args, kwargs)
                    compared += found is not None
                    if found:
                        wrong.setdefault(f"{op.name} {op.variant_test_name}", found)
    assert compared > 10
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
