"""Decompositions do not make constants of symbolic sizes. Those that do are listed, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from differentiated import REFUSALS, differentiated
from samples import samples
from symbolic import Arguments, Description
from test_symbolic_shape_rules import PART_NAMES, PARTS, SPECIALISING, operators
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import FakeMode
from stator.prims.record import TensorMeta, records

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

# Decompositions that have another formula for one value of a size, beside the rules that do.
OF_FORMULAS = {
    "aten.adaptive_max_pool2d.default": "of as many elements as results each is its own maximum",
    "aten.adaptive_max_pool3d.default": "as aten.adaptive_max_pool2d",
    "aten.native_group_norm_backward.default": "as many means as groups, which are a constant argument",
    "aten.slice_backward.default": "a slice of one element",
    "aten.replication_pad2d.default": "negative padding that leaves one element",
    "aten.replication_pad2d_backward.default": "negative padding that leaves no element",
    "aten._chunk_cat.default": "as many parts as chunks",
}


class Decomposed(TorchDispatchMode):
    """Also runs the decomposition of each operator on fake tensors whose sizes are symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.reached: set[str] = set()
        self.specialised: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = records.get(func)
        if entry is not None and entry.decompose is not None:
            leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
            if all(leaf.layout is torch.strided and not leaf.is_conj() for leaf in leaves):
                self.check(func, entry.decompose, args, kwargs)
        return func(*args, **kwargs)

    def check(self, func: Any, decompose: Any, args: Any, kwargs: Any) -> None:
        arguments = Arguments(func, args, kwargs)
        mode = FakeMode()

        def fake(value: Any) -> Any:
            if not isinstance(value, Description):
                return value
            meta = TensorMeta(value.shape, value.stride(), value.dtype, value.device, value.storage_offset())
            return mode.make(meta)

        try:
            with mode:
                result = decompose(*tree_map(fake, arguments.symbolic()[0]), **tree_map(fake, arguments.symbolic()[1]))
        except (Unsupported, *REFUSALS) as error:
            self.refused.setdefault(str(func), f"{type(error).__name__}: {error}\n      called with {arguments.args}")
            return
        if result is NotImplemented:
            return
        self.reached.add(str(func))
        if arguments.environment.constants():
            facts = "; ".join(map(str, arguments.environment.facts))
            self.specialised.setdefault(str(func), f"{facts}\n      called with {arguments.args} {arguments.kwargs}")


def check(part: list, count: int) -> None:
    torch.manual_seed(0)
    checker = Decomposed()
    for _, op in part:
        for tensor, args, kwargs in samples(op, count, (torch.float32, torch.int64)):
            try:
                with torch.no_grad(), checker:
                    op(tensor, *args, **kwargs)
            except REFUSALS:
                continue
    for case in differentiated(operators(part), 1, (None,), (torch.float32,)):
        with checker:
            case.run(case.tensors(), case.tangents)
    assert checker.reached
    assert not checker.refused, "\n".join(f"{name} refuses symbols: {text}" for name, text in checker.refused.items())
    known = SPECIALISING.keys() | OF_FORMULAS.keys()
    found = {name: text for name, text in checker.specialised.items() if name not in known}
    assert not found, "\n".join(f"{name} relies on {text}" for name, text in found.items())


@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_decompositions_keep_symbols(part: list) -> None:
    check(part, 2)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS, ids=PART_NAMES)
def test_decompositions_keep_symbols_for_many_samples(part: list) -> None:
    check(part, 30)


@pytest.mark.parametrize("padding", range(3))
@pytest.mark.parametrize("align_corners", (False, True))
def test_padding_of_sampled_grids_keeps_symbols(padding: int, align_corners: bool) -> None:
    checker = Decomposed()
    with checker:
        image, grid = torch.randn(2, 3, 5, 7), torch.rand(2, 4, 6, 2)
        torch.ops.aten.grid_sampler_2d.default(image, grid, 0, padding, align_corners)
    facts = "".join(checker.specialised.values()).partition("called")[0]
    assert "s5 - 5 == 0" not in facts and "s7 - 7 == 0" not in facts
