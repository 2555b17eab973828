"""Rules of users that are wrong: each is refused with the operator, the rule's file and line, and what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator
from stator import prims
from stator.graph.fake.fake_mode import FakeMode

NAMES = iter(range(1000))
HERE = re.escape(f'File "{__file__}", line ') + r"\d+"


def same(x: Any) -> prims.TensorMeta:
    return prims.TensorMeta(tuple(x.shape), x.stride(), x.dtype, x.device)


def longer(x: Any) -> prims.TensorMeta:
    return prims.TensorMeta((7,), (1,), x.dtype, x.device)


def made(returns: str = "Tensor", **rules: Any) -> Any:
    """An operator of its own that gives twice its argument, with these rules."""
    name = f"stator_rule_tests::operator{next(NAMES)}"
    return prims.operator(f"{name}(Tensor x) -> {returns}", **rules)(lambda x: x * 2)


def asked(operator: Any) -> Any:
    with FakeMode() as mode:
        return operator(mode.make(prims.TensorMeta((4,), (1,), torch.float32, torch.device("cpu"))))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda x: x.shape, "returns a Size where the operator returns Tensor: give a TensorMeta"),
        (lambda x: (same(x), same(x)), "returns 2 results where the operator returns Tensor"),
        (lambda x: None, "returns a NoneType where"),
        (lambda x: prims.TensorMeta((4,), (), x.dtype, x.device), "returns a TensorMeta of 1 sizes and 0 strides"),
        (
            lambda x: prims.TensorMeta(x.shape, x.stride, x.dtype, x.device),
            "returns a TensorMeta whose shape or stride is not a tuple",
        ),
        (
            lambda x: prims.TensorMeta((4,), (1,), "float32", x.device),
            "returns a TensorMeta of 'float32' on .*: give a torch.dtype",
        ),
        (lambda x: x.no_such_thing, "raised AttributeError: .*no_such_thing"),
    ],
)
def test_a_shape_rule_that_is_wrong_is_refused(rule: Callable[..., Any], message: str) -> None:
    with pytest.raises(stator.UsageError, match=rf"the shape rule of stator_rule_tests\S+ \({HERE}.*\) {message}"):
        asked(made(shape=rule))


def test_a_shape_rule_says_as_many_results_as_there_are() -> None:
    with pytest.raises(stator.UsageError, match="returns a TensorMeta where the operator has 2 results"):
        asked(made("(Tensor, Tensor)", shape=same))


def test_what_eager_refuses_too_keeps_its_type() -> None:
    def refusing(x: Any) -> Any:
        raise IndexError("no such dimension")

    with pytest.raises(IndexError, match="no such dimension"):
        asked(made(shape=refusing))


def test_capture_tells_of_a_wrong_rule_and_the_place_of_the_call() -> None:
    operator = made(shape=lambda x: x.shape)
    with pytest.raises(stator.Unsupported, match=rf"\(operator-rule\): the shape(.|\n)*{HERE}, in test_capture"):
        stator.compile(lambda x: operator(x) + 1, fullgraph=True)(torch.ones(4))


def test_an_implementation_that_needs_data_asks_for_a_rule() -> None:
    name = f"stator_rule_tests::operator{next(NAMES)}"
    operator = prims.operator(f"{name}(Tensor x) -> Tensor")(lambda x: torch.from_numpy(x.numpy() * 2))
    with pytest.raises(stator.Unsupported, match=rf"has no shape rule(.|\n)*shape_rule\('{operator}'\)"):
        stator.compile(lambda x: operator(x) + 1, fullgraph=True)(torch.ones(4))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda x: 3, "returns a int where the operator returns Tensor"),
        (lambda x: (x, x), "returns 2 results where"),
        (lambda x: x[:2], r"returns a tensor of size \(2,\) where the shape rule says \(4,\)"),
        (lambda x: x.mul_(2), "writes to an argument"),
        (lambda x: x.no_such_thing, "raised AttributeError"),
    ],
)
def test_a_decomposition_that_is_wrong_is_refused(rule: Callable[..., Any], message: str) -> None:
    operator = made(shape=same, decompose=rule)
    with pytest.raises(stator.UsageError, match=rf"the decomposition of stator_rule_tests\S+ \({HERE}.*\) {message}"):
        stator.decompose(lambda x: operator(x), [torch.ones(4)])


def test_a_decomposition_that_comes_back_to_itself_is_refused() -> None:
    first, second = made(), made()
    prims.decomposition(first)(lambda x: second(x))
    prims.decomposition(second)(lambda x: first(x))
    with pytest.raises(stator.UsageError, match=rf"the decomposition of .*\({HERE}.*\) comes back to .* without end"):
        stator.decompose(lambda x: first(x), [torch.ones(4)])


def test_a_decomposition_may_use_its_operator_for_a_smaller_case() -> None:
    operator = made(shape=lambda x: prims.TensorMeta((), (), x.dtype, x.device))

    @prims.decomposition(operator)
    def halves(x: torch.Tensor) -> torch.Tensor:
        middle = x.shape[0] // 2
        return x[0] * 1 if middle == 0 else operator(x[:middle]) + operator(x[middle:])

    assert stator.decompose(lambda x: operator(x), [torch.ones(8)])(torch.ones(8)) == 8


def test_a_wrong_decomposition_leaves_the_program_to_eager() -> None:
    operator = made(shape=same, decompose=lambda x: x[:2])
    x = torch.randn(4)
    with pytest.warns(RuntimeWarning, match=rf"\({HERE}.*\) returns a tensor of size"):
        result = stator.compile(lambda x: operator(x))(x)
    assert torch.equal(result, x * 2)
    with pytest.raises(stator.UsageError, match=rf"\({HERE}.*\) returns a tensor of size"):
        stator.compile(lambda x: operator(x), fullgraph=True)(x)


@pytest.mark.parametrize("result", [3, (None,)])
def test_a_lowering_that_returns_no_tensor_is_refused(result: Any) -> None:
    operator = made(shape=same)
    prims.lowering(operator)(lambda builder, x: result)
    with pytest.raises(stator.CompileError, match=rf"the lowering of .* for a tensor\n  {HERE}"):
        stator.compile(lambda x: operator(x), fullgraph=True)(torch.ones(4))


def test_a_lowering_that_fails_is_named_by_its_line() -> None:
    operator = made(shape=same)
    prims.lowering(operator)(lambda builder, x: x.no_such_thing)
    with pytest.raises(stator.CompileError, match=rf"no_such_thing'\n  {HERE}"):
        stator.compile(lambda x: operator(x), fullgraph=True)(torch.ones(4))


@pytest.mark.graphs_may_fail_alone
def test_a_result_of_another_dtype_than_promised_names_the_operator() -> None:
    operator = made(shape=lambda x: prims.TensorMeta(tuple(x.shape), x.stride(), torch.float64, x.device))
    with pytest.warns(RuntimeWarning, match=f"of {operator} was promised as torch.float64 .* shape rule is wrong"):
        assert stator.compile(lambda x: operator(x), fullgraph=True)(torch.ones(4)).dtype is torch.float32


def test_tags_in_one_string_are_refused() -> None:
    with pytest.raises(stator.UsageError, match=r"write tags=\('pointwise',\)"):
        made(tags="pointwise")


def test_a_schema_that_is_no_text_is_refused() -> None:
    with pytest.raises(stator.UsageError, match=r"'mylib::name\(Tensor x\) -> Tensor'"):
        prims.operator(torch.relu)  # type: ignore[arg-type]
