"""Every operator of torch's own OpInfo, traced: the functional graph verifies and gives what eager gives."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._ops import OpOverload
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

from stator.base.errors import Unsupported
from stator.graph.ir.schema import op_info
from stator.graph.ir.traced import Fresh
from stator.graph.tracing.tracer import trace
from stator.graph.verifier import verify

SAMPLES = 2
# Their results' shapes or Python values depend on data, they have no meta kernel, or they replace a tensor's storage.
REFUSED = {
    "_batch_norm_with_update",
    "allclose",
    "argwhere",
    "as_strided",
    "as_strided_partial_views",
    "bincount",
    "combinations",
    "corrcoef",
    "cov",
    "equal",
    "geqrf",
    "histogram",
    "histogramdd",
    "item",
    "linalg_lstsq",
    "linalg_lstsq_grad_oriented",
    "masked_select",
    "narrow",
    "nn_functional_ctc_loss",
    "nn_functional_dropout3d",
    "nn_functional_gaussian_nll_loss",
    "nn_functional_one_hot",
    "nn_functional_rrelu",
    "nonzero",
    "polygamma",
    "polygamma_polygamma_n_0",
    "polygamma_polygamma_n_1",
    "polygamma_polygamma_n_2",
    "polygamma_polygamma_n_3",
    "polygamma_polygamma_n_4",
    "repeat_interleave",
    "resize_",
    "resize_as_",
    "squeeze",
    "squeeze_multiple",
    "stft",
    "t",
    "tensor_split",
    "to_sparse",
    "transpose",
    "unique",
    "unique_consecutive",
    "unsqueeze",
}
# Reads tensor data in C++ below the dispatcher.
UNREADABLE = frozenset(("tensor_split",))
OPERATORS = [op for op in op_db if torch.float32 in op.dtypes and not op.name.startswith("jiterator")]

pytestmark = pytest.mark.slow


def cases(op: OpInfo) -> Any:
    """(function, tensors, whether it works in place) for the first samples."""
    for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        tensors = [leaves[index].detach().clone() for index in where]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            continue
        yield _caller(op.op, leaves, spec, where), tensors
        if op.inplace_variant is not None and not sample.broadcasts_input:
            yield _caller(op.inplace_variant, leaves, spec, where), tensors


def _caller(function: Any, leaves: list[Any], spec: Any, where: list[int]) -> Callable[..., Any]:
    def call(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for index, tensor in zip(where, tensors, strict=True):
            values[index] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        return function(first, *args, **kwargs)

    return call


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.formatted_name)
def test_traced_operator_equals_eager(op: OpInfo) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function, tensors in cases(op):
            try:
                check(op, function, tensors)
            except Unsupported:
                assert op.formatted_name in REFUSED


def check(op: OpInfo, function: Callable[..., Any], tensors: list[torch.Tensor]) -> None:
    given = [tensor.clone() for tensor in tensors]
    with torch.no_grad():
        try:
            expected = function(*given)
        except (RuntimeError, TypeError):  # OpInfo lists in-place variants for samples that they refuse
            return
    try:
        traced = trace(function, tensors, keep=lambda target: True)
    except RuntimeError as error:
        assert op.formatted_name in UNREADABLE, error
        return
    verify(traced.graph)
    with torch.no_grad():
        results = traced.graph(*tensors)
    random = any(isinstance(n.target, OpOverload) and op_info(n.target).random for n in traced.graph.graph.nodes)
    meaningless = random or "empty" in op.name
    for output, reference in zip(traced.outputs, pytree.tree_leaves(expected), strict=True):
        if isinstance(output, Fresh):
            compare(results[output.position], reference, meaningless)
    for index, position in traced.mutated:
        compare(results[position], given[index], meaningless)


def compare(result: torch.Tensor, reference: torch.Tensor, only_layout: bool) -> None:
    if only_layout:
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
    else:
        torch.testing.assert_close(result, reference, equal_nan=True)
    if reference.numel():
        assert result.stride() == reference.stride()
