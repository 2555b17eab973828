"""The operator table: its levels are complete and bounded, decompositions bottom out, and no rule fixes a size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import stator.prims
from stator.prims.levels import PARTLY_MADE_OF_PRIMS
from stator.prims.record import OpRecord, TensorMeta, decomposition, records, shape_rule
from stator.prims.shape_rules.operands import overloads

FOLDER = Path(stator.prims.__file__).parent
MOST_PRIMS = 250


def tagged(tag: str) -> list[OpRecord]:
    return [entry for entry in map(records.__getitem__, records) if tag in entry.tags]


def test_there_are_at_most_250_primitives() -> None:
    assert 150 < len(tagged("prim")) <= MOST_PRIMS


def test_primitives_are_canonical() -> None:
    assert {id(entry) for entry in tagged("prim")} <= {id(entry) for entry in tagged("canonical")}


def test_canonical_operators_are_complete() -> None:
    """A shape rule each; no argument written; and either a primitive or made of others (six are both, in part)."""
    partly = overloads(PARTLY_MADE_OF_PRIMS)
    assert len(partly) == 6
    for entry in tagged("canonical"):
        assert entry.shape is not None, entry.target
        assert not entry.target._schema.is_mutable, entry.target
        assert ("prim" in entry.tags) == (entry.decompose is None or entry.target in partly), entry.target


def test_core_aten_is_canonical() -> None:
    """What torch itself tags as core, but for what our graphs never hold."""
    never_traced = {
        "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "sym_is_contiguous",  # numbers, not tensors
        "_local_scalar_dense", "nonzero",  # depend on data
        "_cdist_forward", "_pdist_forward", "_embedding_bag", "_fft_r2c", "_fft_c2r",  # no rule yet
        "_native_batch_norm_legit",  # writes its running statistics
    }  # fmt: skip
    missing = []
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if namespace != "aten" or not hasattr(torch.ops.aten, packet):
            continue
        target = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if target is None or torch.Tag.core not in target.tags or target._schema.is_mutable:
            continue
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
        entry = records.get(target)
        if not composite and packet not in never_traced and (entry is None or "canonical" not in entry.tags):
            missing.append(name)
    assert not missing


def test_data_dependent_operators_have_no_shape_rule() -> None:
    for entry in tagged("data_dependent"):
        assert entry.shape is None or not entry.target._schema.returns, entry.target


def test_in_place_operators_return_their_argument() -> None:
    x = torch.ones(2, 3)
    for entry in tagged("inplace"):
        if entry.target in (torch.ops.aten.relu_.default, torch.ops.aten.zero_.default):
            assert entry.shape is not None
            assert entry.shape(x) == TensorMeta((2, 3), (3, 1), torch.float32, torch.device("cpu"), 0, 0)


def test_in_place_operators_refuse_what_does_not_fit() -> None:
    add = records[torch.ops.aten.add_.Tensor].shape
    assert add is not None
    with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape \[2, 3\]"):
        add(torch.ones(3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        add(torch.ones(3, dtype=torch.int64), torch.ones(3))


def test_a_second_rule_for_one_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"duplicate shape rule for aten\.add\.Tensor"):
        shape_rule(torch.ops.aten.add.Tensor)(lambda *args: None)
    with pytest.raises(ValueError, match=r"duplicate decomposition for aten\.silu\.default"):
        decomposition(torch.ops.aten.silu.default)(lambda *args: None)


def sources() -> Iterator[Path]:
    yield from sorted((FOLDER / "shape_rules").glob("*.py"))
    yield FOLDER / "layout.py"


def test_no_shape_rule_turns_a_size_into_an_int() -> None:
    """Sizes may be symbolic: `int()`, `operator.index`, `.item()` and `math.prod` would fix them."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("int", "float"), f"{path.name}:{node.lineno} calls {node.func.id}()"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in ("index", "item", "__index__"), f"{path.name}:{node.lineno}"
