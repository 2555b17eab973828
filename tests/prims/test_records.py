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
from stator.prims.refusal import Refused
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
    with pytest.raises(Refused):
        add(torch.ones(3), torch.ones(2, 3))
    with pytest.raises(Refused):
        add(torch.ones(3, dtype=torch.int64), torch.ones(3))


def test_a_second_rule_for_one_operator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"duplicate shape rule for aten\.add\.Tensor"):
        shape_rule(torch.ops.aten.add.Tensor)(lambda *args: None)
    with pytest.raises(ValueError, match=r"duplicate decomposition for aten\.silu\.default"):
        decomposition(torch.ops.aten.silu.default)(lambda *args: None)


# Functions that make ints or floats of numbers that are no sizes, or of sizes that are known.
CONVERT_OTHER_NUMBERS = {
    "shapes/arithmetic.py:as_int": "a truth",
    "shapes/environment.py:Environment._inherit": "a bound",
    "shapes/environment.py:Environment._lower_bound": "a bound",
    "shapes/environment.py:Environment._set_range": "a bound",
    "shapes/environment.py:Environment._typical": "bounds",
    "shapes/expr.py:as_expr": "an int of NumPy or a bool, which becomes a constant expression",
    "shapes/expr.py:as_int": "an int of NumPy or a bool",
    "shapes/floats.py:IntCall._value": "what a function of Python gives for numbers",
    "shapes/floats.py:IntCall._atom_bounds": "a truth",
    "shapes/floats.py:_as_bound": "a bound",
    "shapes/floats.py:as_float": "a constant",
    "shapes/floats.py:int_call": "what a function of Python gives for constants",
    "shapes/lower_bounds.py:above_corner": "a bound",
    "shapes/simplify.py:_floor_division": "a bound",
    "shapes/simplify.py:_limit": "a bound",
    "shapes/simplify.py:_remainder": "a bound",
    "shapes/simplify.py:_symbol": "a bound",
    "shapes/sym_node.py:SymbolicNode.guard_float": "C++ asks for the value, which becomes a fact",
    "shapes/sym_node.py:SymbolicNode.int_": "C++ asks for the value, which becomes a fact",
    "shapes/sym_node.py:SymbolicNode.is_integer": "Python asks about the value, which becomes a fact",
    "prims/decompositions/neural_networks/gathering_gradients.py:_most_readers": "positions, for known sizes only",
    "prims/decompositions/neural_networks/grid_sampling.py:bicubic_sample": "numbers of neighbours",
    "prims/decompositions/neural_networks/grid_sampling.py:grid_sampler": "numbers of neighbours",
    "prims/operators/ctc_loss.py:_backward": "data of a tensor, when the operator runs",
    "prims/operators/checks.py:numbers_in": "data of a tensor, when the operator runs",
    "prims/special/special_functions.py:_chebyshev": "a coefficient",
    "prims/special/special_functions.py:digamma": "a coefficient",
    "prims/special/special_functions.py:trigamma": "a coefficient",
    "prims/type_promotion.py:_fits": "limits of dtypes",
    "graph/fake/fake_mode.py:": "C++ without support for symbolic sizes asks for plain numbers: they become facts",
    "graph/fake/fake_tensor.py:FakeTensor.tolist": "data of a known tensor",
    "graph/fake/number_stand_ins.py:Number.guard_float": "C++ asks for the value, which becomes a fact",
    "graph/fake/number_stand_ins.py:Number.int_": "C++ asks for the value, which becomes a fact",
    "graph/fake/number_stand_ins.py:_in_tensors": "a number that is no size",
    "graph/fake/number_stand_ins.py:number_from_tensor": "data of a known tensor",
    "graph/fake/scalar_expressions.py:_Operands._read_tensor": "data of a known tensor",
    "graph/fake/unknown_sizes.py:UnknownSizes.number": "a bound",
    "graph/functionalization/functionalize.py:FunctionalTracer.value": "data of a known tensor",
    "graph/operators/mutation.py:_copy": "data of a known tensor",
    "graph/operators/nested_attention.py:_padded": "an operator of the graph",
    "graph/operators/rng_comparisons.py:_register.compare": "a number that is no size",
}
CONVERSIONS = ("int", "float", "item", "__index__", "__int__", "tolist")
ROOMS_OF_RULES = ("shapes", "prims", "graph/fake", "graph/functionalization", "graph/operators")


def conversions() -> Iterator[tuple[str, str]]:
    """The functions that turn numbers into ints and floats of Python, with the line of each conversion."""
    root = FOLDER.parent
    for path in sorted(one for room in ROOMS_OF_RULES for one in (root / room).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for function, call in calls_in(ast.parse(path.read_text()), ""):
            called = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            of_text = bool(call.args) and isinstance(call.args[0], ast.Constant)  # float("inf")
            of_index = called == "index" and ast.unparse(call.func) == "operator.index"
            if (called in CONVERSIONS or of_index) and not of_text and not is_overload(call.func):
                yield f"{name}:{function}", f"{name}:{call.lineno} {ast.unparse(call)}"


def is_overload(called: ast.expr) -> bool:
    """Whether this is an operator such as aten.select.int."""
    return isinstance(called, ast.Attribute) and ast.unparse(called).startswith("aten.")


def calls_in(node: ast.AST, function: str) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{function}.{child.name}" if function else child.name
        if isinstance(child, ast.Call):
            yield function, child
        yield from calls_in(child, inner)


def test_nothing_turns_a_size_into_an_int() -> None:
    """Sizes may be symbolic: `int()`, `operator.index`, `.item()` and their like would fix them."""

    found = list(conversions())
    assert not [text for function, text in found if function not in CONVERT_OTHER_NUMBERS]
    gone = sorted(CONVERT_OTHER_NUMBERS.keys() - {function for function, _ in found})
    assert not gone
