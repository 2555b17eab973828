"""Every shape rule gives with symbolic sizes what it gives with numbers, and does not make constants of the symbols.

Three things are compared for each operator that a sample reaches, forward and backward: what eager returns, what the
rule says of numbers, and what it says of symbols, evaluated at the sample's sizes. At other sizes for which the facts
hold that were relied on, the symbolic result has to be right, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch
from differentiated import REFUSALS, differentiated
from samples import IDENTIFIERS, LAYOUTS, OPERATORS, laid_out, samples
from symbolic import SymbolicRuleCheck, Symbols, evaluated
from torch.utils._pytree import tree_leaves, tree_map

from stator.base import counters
from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode
from stator.prims.record import TensorMeta
from stator.shapes.sym_node import to_sym_int

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

NAMED = list(zip(IDENTIFIERS, OPERATORS, strict=True))
PART = 40
PARTS = [NAMED[start : start + PART] for start in range(0, len(NAMED), PART)]
PART_NAMES = [f"{part[0][0]}-to-{part[-1][0]}" for part in PARTS]

# Operators whose result has another structure for each value of a size.
SPECIALISING = {
    "aten.split.Tensor": "as many results as pieces; a last piece of one element",
    "aten.unsafe_split.Tensor": "as aten.split.Tensor",
    "aten.split_copy.Tensor": "as aten.split.Tensor",
    "aten.chunk.default": "as aten.split.Tensor",
    "aten.unbind.int": "as many results as elements",
    "aten.unbind_copy.int": "as many results as elements",
    "aten.view_as_complex.default": "the last size has to be 2",
    "aten.linalg_cross.default": "one size has to be 3",
    "aten.grid_sampler_2d.default": "the last size of the grid has to be 2",
    "aten.grid_sampler_3d.default": "the last size of the grid has to be 3",
    "aten.constant_pad_nd.default": "negative padding that leaves one element: sizes of one are never symbols",
    "aten.slice.Tensor": "a slice of one element",
    "aten.diagonal.default": "a diagonal of one element",
    "aten.unfold.default": "one window",
}
# Operators whose shape is left to a meta kernel.
LEFT_TO_META = {
    "aten._to_sparse.default": "sparse results are not described",
    "aten._to_sparse.sparse_dim": "sparse results are not described",
    "torch_nn._linear_cross_entropy_batch_chunked.default": "a custom operator of torch's, with a fake of its own",
    "torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default": "as the one above",
}
# Operators whose C++ looks at what kind of tensor it is given, or at its data.
NOT_AS_FAKES = {
    "ormqr": "the gradient works in place on plain tensors only, which changes strides",
    "tensor_split": "the C++ reads the indices of a tensor without asking an operator",
}
if torch.__version__ < "2.12":
    NOT_AS_FAKES["trace"] = "the C++ of the gradient wants a plain number of elements"


def operators(part: list, skip: Collection[str] = ()) -> list[Any]:
    return [op for name, op in part if name not in skip]


def check(part: list, count: int, layouts: tuple[str | None, ...], dtypes: Any, shared: bool) -> None:
    torch.manual_seed(0)
    checker = SymbolicRuleCheck(shared=shared)
    for _, op in part:
        for sample in samples(op, count, dtypes):
            for layout in layouts:
                tensor, args, kwargs = sample if layout is None else laid_out(sample, layout)
                try:
                    with torch.no_grad(), checker:
                        op(tensor, *args, **kwargs)
                except REFUSALS:
                    continue
    for case in differentiated(operators(part), count, layouts, dtypes):
        with checker:
            case.run(case.tensors(), case.tangents)
    assert checker.symbolically
    assert not checker.mismatches, "\n".join(
        f"{target}:\n    " + "\n    ".join(problems) for target, problems in checker.mismatches.items()
    )
    specialised = {name: text for name, text in checker.specialised.items() if name not in SPECIALISING}
    assert not specialised, "\n".join(f"{name} relies on {text}" for name, text in specialised.items())


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_rules_give_the_same_with_symbolic_sizes(part: list) -> None:
    check(part, 1, (None,), (torch.float32,), shared=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shared", (True, False), ids=("a symbol for each size", "a symbol for each dimension"))
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_rules_give_the_same_with_symbolic_sizes_in_every_layout(part: list, shared: bool) -> None:
    dtypes = (torch.float32, torch.complex64, torch.int64, torch.bool)
    check(part, 6, (None, *LAYOUTS), dtypes, shared)


def metas(values: Any) -> list[TensorMeta]:
    return [
        TensorMeta(tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device)
        for leaf in tree_leaves(values)
        if isinstance(leaf, torch.Tensor)
    ]


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_fake_tensors_carry_symbolic_sizes(part: list) -> None:
    """Whole operators and their gradients, C++ between them included, on fake tensors with symbolic sizes."""
    torch.manual_seed(0)
    wrong = []
    for case in differentiated(operators(part, NOT_AS_FAKES), 1, (None,), (torch.float32,)):
        expected = metas(case.run(case.tensors(), case.tangents))
        symbols = Symbols(shared=True)
        environment = symbols.environment
        mode = FakeMode()

        def fake(tensor: torch.Tensor, mode: FakeMode = mode, symbols: Symbols = symbols) -> torch.Tensor:
            shape, strides, offset = tree_map(
                lambda value: to_sym_int(symbols.environment, value), symbols.layout(tensor)
            )
            return mode.make(TensorMeta(tuple(shape), tuple(strides), tensor.dtype, tensor.device, offset))

        try:
            with mode:
                found = metas(case.run(*(list(map(fake, values)) for values in (case.tensors(), case.tangents))))
        except Unsupported:
            continue
        if [evaluated(meta, environment.hints) for meta in found] != expected:
            wrong.append(f"{case.op.name} of {case.leaves}: {found} instead of {expected}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_no_meta_kernel_is_needed(part: list) -> None:
    """Forward and backward of fake tensors know every result's shape by our own rules."""
    torch.manual_seed(0)
    counters.clear()
    for _, op in part:
        for tensor, args, kwargs in samples(op, 1, (torch.float32, torch.int64)):
            run_on_fakes(lambda fakes, op=op: op(fakes[0], *fakes[1], **fakes[2]), (tensor, args, kwargs))
    for case in differentiated(operators(part), 1, (None,), (torch.float32,)):
        run_on_fakes(lambda fakes, case=case: case.run(*fakes), (case.tensors(), case.tangents))
    asked = {name.partition(":")[2] for name in counters.counts if name.startswith("meta_fallback:")}
    assert asked <= LEFT_TO_META.keys()


def run_on_fakes(function: Any, inputs: Any) -> None:
    mode = FakeMode()
    try:
        given = tree_map(lambda leaf: mode.from_real(leaf) if isinstance(leaf, torch.Tensor) else leaf, inputs)
        with mode:
            function(given)
    except (Unsupported, *REFUSALS):
        return  # what it asked before that counts
