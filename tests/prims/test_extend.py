"""stator.prims, queried and extended: names, filters, own operators, and what is refused with which explanation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator import prims
from stator.base import counters
from stator.inductor import lower

aten = torch.ops.aten
NAMES = iter(range(1000))


@pytest.fixture
def name() -> str:
    """Of an operator that nobody has defined: definitions last as long as the process."""
    return f"stator_tests::operator{next(NAMES)}"


@pytest.fixture
def silu() -> Iterator[prims.OpRecord]:
    """A record of stator's own, with its rules put back afterwards."""
    entry, table = prims.lookup("aten.silu"), lower.lowerings
    shape, decompose, tags, lowering = entry.shape, entry.decompose, entry.tags, table[aten.silu.default]
    yield entry
    entry.shape, entry.decompose, entry.tags = shape, decompose, tags
    if entry.target in table:
        table.remove(entry.target)
    table.add(entry.target, lowering)


# -- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "operator",
    ["aten.add.Tensor", "add.Tensor", "aten::add.Tensor", "torch.ops.aten.add.Tensor", aten.add.Tensor],
)
def test_one_operator_has_several_names(operator: Any) -> None:
    assert prims.lookup(operator).target is aten.add.Tensor


def test_the_default_overload_may_be_left_out() -> None:
    assert prims.lookup("relu").target is aten.relu.default
    assert prims.lookup(aten.silu).target is aten.silu.default


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        ("aten.silo", r"no operator 'aten.silo' \(did you mean 'aten.silu'\?\)"),
        ("aten.add.Tensr", r"no overload 'Tensr' \(did you mean 'Tensor'\?\); it has: Tensor"),
        ("aten.add", r"several overloads, name one: aten.add.Tensor"),
        ("nowhere.silu", "no operator"),
        ("", "not the name of an operator"),
        ("a.b.c.d", "not the name of an operator"),
        (3, "named by a string or an overload"),
    ],
)
def test_unknown_operators_are_refused(operator: Any, message: str) -> None:
    with pytest.raises(stator.UsageError, match=message):
        prims.lookup(operator)


def test_records_print_what_is_known() -> None:
    assert repr(prims.lookup("silu")) == "<aten.silu.default: canonical, pointwise; shape rule and decomposition>"
    text = str(prims.lookup("silu"))
    assert "silu in stator.prims.special.activations" in text
    assert "aten::silu(Tensor self) -> Tensor" in text


def test_filters() -> None:
    primitives, canonical = list(prims.operators(level="prims")), list(prims.operators(level="aten"))
    assert {entry.level for entry in primitives} == {"prims"}
    assert {entry.name for entry in primitives} < {entry.name for entry in canonical}
    assert [entry.name for entry in canonical] == sorted(entry.name for entry in canonical)
    products = {entry.name for entry in prims.operators(tag="matmul", level="prims")}
    assert products >= {"aten.mm.default", "aten.bmm.default"}
    assert all(prims.is_lowered(entry.target) for entry in prims.operators(backend="inductor"))


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"level": "prim"}, "unknown level 'prim'; known levels: aten, prims"),
        ({"tag": "matmull"}, r"unknown tag 'matmull' \(did you mean 'matmul'\?\)"),
        ({"backend": "xla"}, "no backend 'xla' with lowerings"),
    ],
)
def test_unknown_filters_are_refused(named: dict[str, str], message: str) -> None:
    with pytest.raises(stator.UsageError, match=message):
        list(prims.operators(**named))


# -- own operators ----------------------------------------------------------------------------------------------------


def same(x: Any, *_rest: Any, **_named: Any) -> prims.TensorMeta:
    return prims.TensorMeta(tuple(x.shape), x.stride(), x.dtype, x.device)


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[Any, dict[str, int]]:
    counters.clear()
    with torch.no_grad():
        result = stator.compile(function, fullgraph=True)(*inputs)
    return result, dict(counters.counts)


def test_an_operator_without_rules_is_called_and_counted(name: str) -> None:
    operator = prims.operator(f"{name}(Tensor x, float by=2.0, *, bool twice=False) -> Tensor", shape=same)(
        lambda x, by=2.0, *, twice=False: x * by * (2 if twice else 1)
    )
    x = torch.randn(7)
    result, counts = compiled(lambda x: operator(x + 1, 3.0, twice=True) - 1, x)
    torch.testing.assert_close(result, (x + 1) * 6.0 - 1)
    assert counts[f"inductor_fallback:{operator}"] == 1
    assert f"meta_fallback:{operator}" not in counts


def test_an_operator_of_torch_library_compiles_and_takes_rules(name: str) -> None:
    @torch.library.custom_op(name, mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    x = torch.randn(7)
    result, counts = compiled(lambda x: doubled(x + 1) * 3, x)
    torch.testing.assert_close(result, (x + 1) * 6)
    assert counts[f"inductor_fallback:{name.replace('::', '.')}.default"] == 1
    prims.shape_rule(doubled)(same)
    prims.decomposition(name)(lambda x: x + x)
    result, counts = compiled(lambda x: doubled(x + 1) * 3, x)
    torch.testing.assert_close(result, (x + 1) * 6)
    assert not [key for key in counts if "fallback" in key]
    assert counts["kernels"] == 1


def test_half_floats_reach_a_decomposition_widened(name: str) -> None:
    operator = prims.operator(f"{name}(Tensor x) -> Tensor", shape=same)(lambda x: x.exp())
    seen: list[torch.dtype] = []

    @prims.decomposition(operator)
    def rule(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.dtype)
        return torch.exp(x)

    result, _ = compiled(lambda x: operator(x), torch.ones(3, dtype=torch.bfloat16))
    assert seen == [torch.float32]
    assert result.dtype is torch.bfloat16


def test_a_lowering_takes_the_operator_whole(name: str) -> None:
    operator = prims.operator(f"{name}(Tensor x) -> Tensor", shape=same, decompose=lambda x: x + 1)(lambda x: x + 1)

    @prims.lowering(operator)
    def rule(builder: Any, x: Any) -> Any:
        return lower.elementwise(builder, lambda ops, v: ops.add(v, ops.constant(1, ops.dtype(v))), [x])

    x = torch.randn(5)
    result, counts = compiled(lambda x: operator(x) * 2, x)
    torch.testing.assert_close(result, (x + 1) * 2)
    assert prims.is_lowered(operator)
    assert counts["kernels"] == 1


def test_a_primitive_with_a_decomposition_is_one_no_more(name: str) -> None:
    operator = prims.operator(f"{name}(Tensor x) -> Tensor", tags=("prim", "canonical"), shape=same)(lambda x: x + 1)
    assert prims.lookup(operator).level == "prims"
    prims.decomposition(operator)(lambda x: x + 1)
    assert prims.lookup(operator).level == "aten"


def test_an_overload_can_be_defined(name: str) -> None:
    operator = prims.operator(f"{name}.scaled(Tensor x, Scalar by) -> Tensor", shape=same)(lambda x, by: x * by)
    assert str(operator) == name.replace("::", ".") + ".scaled"
    result, _ = compiled(lambda x: operator(x, 3), torch.ones(2))
    assert torch.equal(result, torch.full((2,), 3.0))


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorator", [prims.shape_rule, prims.decomposition, prims.lowering])
def test_a_second_rule_needs_replace(silu: prims.OpRecord, decorator: Callable[..., Any]) -> None:
    def rule(*_args: Any) -> Any:
        return NotImplemented

    with pytest.raises(stator.UsageError, match=r"aten\.silu\.default has a .* already \(File .*\); pass replace=True"):
        decorator("silu")(rule)
    assert decorator("silu", replace=True)(rule) is rule


def test_a_replaced_decomposition_is_used(silu: prims.OpRecord) -> None:
    prims.decomposition("silu", replace=True)(lambda x: torch.neg(x))
    graph = stator.decompose(torch.nn.functional.silu, [torch.ones(2)])
    assert torch.equal(graph(torch.ones(2)), -torch.ones(2))


def test_a_lowering_may_leave_all_to_a_replaced_decomposition(silu: prims.OpRecord) -> None:
    prims.decomposition("silu", replace=True)(lambda x: torch.neg(x))
    prims.lowering("silu", replace=True)(lambda builder, x: NotImplemented)
    result, counts = compiled(lambda x: torch.nn.functional.silu(x) + 1, torch.ones(2))
    assert torch.equal(result, torch.zeros(2))
    assert counts["kernels"] == 1


@pytest.mark.parametrize(
    ("decorator", "rule", "message"),
    [
        (prims.shape_rule, lambda x: x, r"signature \(x\), but is called with \(x, by\): too many"),
        (prims.decomposition, lambda x, by: x, r"is called with \(x\): missing a required argument: 'by'"),
        (prims.lowering, lambda x, by=1.0: x, r"is called with \(builder, x, by\)"),
        (prims.lowering, 3, "must be a function"),
    ],
)
def test_a_rule_that_cannot_take_the_arguments_is_refused(
    name: str, decorator: Callable[..., Any], rule: Any, message: str
) -> None:
    operator = prims.operator(f"{name}(Tensor x, float by=1.0) -> Tensor")(lambda x, by=1.0: x * by)
    with pytest.raises(stator.UsageError, match=message):
        decorator(operator)(rule)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("lonely(Tensor x) -> Tensor", "names no namespace; write 'mylib::lonely"),
        ("stator_tests::bad(Tensor(a!) x) -> Tensor", "writes to an argument"),
        ("stator_tests::bad(Tensor(a) x) -> Tensor(a)", "returns an alias"),
        ("stator_tests::bad(Tensr x) -> Tensor", "is not an operator schema"),
        ("aten::silu(Tensor self) -> Tensor", "there is an operator aten::silu already"),
    ],
)
def test_schemas_that_cannot_be_defined_are_refused(schema: str, message: str) -> None:
    with pytest.raises(stator.UsageError, match=message):
        prims.operator(schema)(lambda x: x)


def test_rules_for_an_unknown_operator_are_refused() -> None:
    for decorator in (prims.shape_rule, prims.decomposition, prims.lowering):
        with pytest.raises(stator.UsageError, match=r"did you mean 'aten\.silu'"):
            decorator("aten.silo")
