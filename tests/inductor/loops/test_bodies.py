"""Loop bodies: recording with common subexpressions and exact folding, masks, merging of loops, printing, verifying."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from loop_evaluator import interpret

from stator.base.errors import VerificationError
from stator.inductor.loops.body import LoopBody, Op, Ref
from stator.inductor.loops.collapse import collapse
from stator.inductor.loops.handler import LoopRecorder, freeze
from stator.inductor.loops.printer import after_reduction, print_body
from stator.inductor.loops.verifier import verify_body
from stator.shapes.expr import symbols

i, j, r = symbols("i0 i1 r0")
F32 = torch.float32


def dtype_of(name: str) -> torch.dtype:
    return {"n": torch.int64, "b": torch.bool, "h": torch.bfloat16, "d": torch.float64}.get(name[0], F32)


def record(function, variables=(i,), ranges=(8,), reduced=(), reduced_ranges=()) -> LoopBody:
    body = freeze(function, variables, ranges, reduced, reduced_ranges, dtype_of)
    verify_body(body, dtype_of)
    return body


def names(body: LoopBody) -> list[str]:
    return [op.name for op in body.ops]


def test_equal_operations_are_recorded_once():
    def function(ops):
        x, y = ops.load("x", i), ops.load("x", i + 0)
        ops.store("out", i, ops.add(ops.exp(x), ops.exp(y)))

    assert names(record(function)) == ["load", "exp", "add", "store"]


def test_constants_that_compare_equal_stay_apart():
    def function(ops):
        one, true, zero = ops.constant(1.0, F32), ops.constant(1, torch.int64), ops.constant(-0.0, F32)
        ops.store("out", i, ops.add(ops.mul(ops.load("x", i), zero), ops.constant(0.0, F32)))
        ops.store("n", i, ops.add(ops.load("n1", i), true))
        ops.store("out1", i, ops.sub(ops.load("x", i), ops.add(one, one)))

    values = [repr(op.args[0]) for op in record(function).ops if op.name == "constant"]
    assert sorted(values) == ["-0.0", "0.0", "1", "2.0"]


def test_folding_keeps_every_bit():
    def function(ops):
        x = ops.load("x", i)
        x = ops.mul(ops.sub(ops.add(x, ops.constant(-0.0, F32)), ops.constant(0.0, F32)), ops.constant(1, F32))
        ops.store("out", i, ops.where(ops.lt(ops.constant(1, F32), ops.constant(2, F32)), x, ops.exp(x)))

    assert names(record(function)) == ["load", "store"]


def test_adding_positive_zero_is_kept():
    body = record(lambda ops: ops.store("out", i, ops.add(ops.load("x", i), ops.constant(0.0, F32))))
    assert "add" in names(body)


def test_float32_constants_are_rounded():
    body = record(lambda ops: ops.store("out", i, ops.mul(ops.load("x", i), ops.constant(0.1, F32))))
    (value,) = [op.args[0] for op in body.ops if op.name == "constant"]
    assert value == torch.tensor(0.1).item()


def test_casts_that_lose_nothing_are_skipped_and_others_kept():
    def function(ops):
        x = ops.to_dtype(ops.to_dtype(ops.load("h", i), F32), torch.float64)
        y = ops.to_dtype(ops.to_dtype(ops.load("x", i), torch.bfloat16), torch.float64)
        ops.store("d", i, ops.add(x, y))

    assert names(record(function)).count("to_dtype") == 3


def test_masked_loads_read_nothing_outside():
    def function(ops):
        position = ops.index_value(i - 2, torch.int64)
        mask = ops.ge(position, ops.constant(0, torch.int64))
        ops.store("out", i, ops.masked(mask, lambda: ops.exp(ops.load("x", i - 2)), 5.0, F32))
        ops.store("out1", i, ops.masked(mask, lambda: ops.load("x", i - 2), -1.0, F32))

    body = record(function)
    memory = {"x": torch.randn(6), "out": torch.empty(8), "out1": torch.empty(8)}
    interpret(body, memory)
    torch.testing.assert_close(memory["out"], torch.cat([torch.full((2,), 5.0), memory["x"].exp()]))
    torch.testing.assert_close(memory["out1"], torch.cat([torch.full((2,), -1.0), memory["x"]]))


def test_unmasked_access_outside_is_an_error():
    body = record(lambda ops: ops.store("out", i, ops.load("x", i - 2)))
    with pytest.raises(IndexError, match="outside"):
        interpret(body, {"x": torch.randn(6), "out": torch.empty(8)})


def test_indirect_symbols_follow_renumbering():
    def function(ops):
        ops.exp(ops.load("x", i))  # dead, so that positions shift
        at = ops.indirect(ops.load("n", i), 5)
        ops.store("out", i, ops.load("x", at * 2 + 1))

    body = record(function)
    assert names(body) == ["load", "indirect", "load", "store"]
    memory = {"x": torch.randn(10), "n": torch.tensor([0, 4, -1, 2, 1, 3, -5, 0]), "out": torch.empty(8)}
    interpret(body, memory)
    torch.testing.assert_close(memory["out"], memory["x"].view(5, 2)[memory["n"], 1])


def test_an_index_computed_from_the_loop_needs_no_indirection():
    def function(ops):
        at = ops.indirect(ops.index_value(7 - i, torch.int64), 8)
        ops.store("out", i, ops.load("x", at))

    assert names(record(function)) == ["load", "store"]


def test_reduction_with_epilogue():
    def function(ops):
        total = ops.reduce("sum", ops.mul(ops.load("x", i * 5 + r), ops.load("x", i * 5 + r)))
        ops.store("out", i, ops.sqrt(total))

    body = record(function, (i,), (8,), (r,), (5,))
    assert [body.ops[at].name for at in sorted(after_reduction(body))] == ["sqrt", "store"]
    memory = {"x": torch.randn(40), "out": torch.empty(8)}
    interpret(body, memory)
    torch.testing.assert_close(memory["out"], memory["x"].view(8, 5).norm(dim=1))


def test_atomic_stores_accumulate():
    body = record(lambda ops: ops.store("out", i // 4, ops.load("x", i), "add"))
    memory = {"x": torch.randn(8), "out": torch.ones(2)}
    interpret(body, memory)
    torch.testing.assert_close(memory["out"], memory["x"].view(2, 4).sum(1) + 1)


def test_contiguous_loops_merge_and_strided_ones_do_not():
    merged = collapse(record(lambda ops: ops.store("out", i * 5 + j, ops.load("x", i * 5 + j)), (i, j), (4, 5)))
    assert merged.ranges == (20,)
    strided = collapse(record(lambda ops: ops.store("out", i * 5 + j, ops.load("x", i + 4 * j)), (i, j), (4, 5)))
    assert strided.ranges == (4, 5)
    single = collapse(record(lambda ops: ops.store("out", i + j, ops.load("x", i * 7 + j)), (i, j), (1, 5)))
    assert single.ranges == (5,)


def test_merging_sees_through_divisions():
    def function(ops):
        flat = i * 6 + j
        ops.store("out", flat, ops.load("x", flat // 4 + 6 * (flat % 4)))

    body = record(function, (i, j), (4, 6))
    merged = collapse(body)
    assert merged.ranges == (24,)
    source = torch.randn(24)
    one, other = ({"x": source, "out": torch.empty(24)} for _ in range(2))
    interpret(body, one)
    interpret(merged, other)
    assert torch.equal(one["out"], other["out"])


def test_the_printed_body_shows_loops_and_epilogue():
    def function(ops):
        ops.store("out", i, ops.reduce("max", ops.load("x", i * 5 + r)))

    assert print_body(record(function, (i,), (8,), (r,), (5,))) == (
        "for i0 in range(8):\n"
        "  for r0 in range(5):  # reduced\n"
        "    %0:float32 = load(x, [5*i0 + r0], None, 0)\n"
        "    %1:float32 = reduce(max, %0)\n"
        "  store(out, [i0], %1, None, None)"
    )


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Op("frobnicate", (), F32),), "not in the vocabulary"),
        ((Op("exp", (Ref(3),), F32),), "not earlier"),
        ((Op("constant", (1, F32), F32), Op("exp", (Ref(0), Ref(0)), F32)), "takes 1 arguments"),
        ((Op("constant", (1, F32), F32), Op("logical_not", (Ref(0),), F32)), "result"),
        ((Op("constant", (True, torch.bool), torch.bool), Op("neg", (Ref(0),), torch.bool)), "must not be bool"),
        ((Op("constant", (1, torch.bfloat16), torch.bfloat16), Op("neg", (Ref(0),), torch.bfloat16)), "arithmetic in"),
        ((Op("constant", (1, F32), F32),), "stores nothing"),
        ((Op("constant", (1, F32), F32), Op("reduce", ("sum", Ref(0)), F32)), "without reduction loops"),
        ((Op("constant", (1, F32), F32), Op("total", (Ref(0), Ref(0)), F32)), "a total of"),
    ],
)
def test_the_verifier_refuses(ops, message):
    body = dataclasses.replace(record(lambda o: o.store("out", i, o.load("x", i))), ops=ops)
    with pytest.raises(VerificationError, match=message):
        verify_body(body, dtype_of)


def test_a_name_outside_the_vocabulary_is_an_attribute_error():
    with pytest.raises(AttributeError):
        record(lambda ops: ops.frobnicate(ops.load("x", i)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_on_a_mask_and_constants_is_one_choice(dtype):
    def function(ops):
        value = ops.to_dtype(ops.load("b", i), dtype)
        value = ops.sub(ops.constant(0.3, dtype), ops.div(value, ops.constant(0.7, dtype)))
        ops.store("out", i, ops.to_dtype(ops.mul(ops.add(value, ops.constant(2, dtype)), ops.constant(3, dtype)), F32))

    body = record(function)
    assert names(body) == [
        "load",
        "constant",
        "constant",
        "where",
        *(["to_dtype"] if dtype is torch.float64 else []),
        "store",
    ]
    mask, out = torch.arange(8) % 3 == 0, torch.zeros(8)
    interpret(body, {"b": mask, "out": out})
    assert torch.equal(out, ((0.3 - mask.to(dtype) / 0.7 + 2) * 3).float())


def test_a_mask_divided_by_zero_is_computed_when_it_runs():
    body = record(lambda ops: ops.store("out", i, ops.div(ops.to_dtype(ops.load("b", i), F32), ops.constant(0, F32))))
    out = torch.zeros(8)
    interpret(body, {"b": torch.arange(8) == 0, "out": out})
    assert out[0] == math.inf and out[1:].isnan().all()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("other", ["load", "constant"])
def test_differences_of_bytes_are_not_rounded_if_half_floats_have_them(half, other):
    """int8 - int8 is at most 255; int8 - uint8 and int8 - 500 reach beyond the integers of bfloat16, to 256."""
    for second in ("b", "u") if other == "load" else (100, 500):

        def function(ops, second=second):
            first = ops.to_dtype(ops.load("a", i), F32)
            taken = ops.to_dtype(ops.load(second, i), F32) if other == "load" else ops.constant(second, F32)
            ops.store("out", i, ops.to_dtype(ops.to_dtype(ops.sub(first, taken), half), F32))

        recorder = LoopRecorder({"a": torch.int8, "b": torch.int8, "u": torch.uint8, "out": F32}.__getitem__, {})
        function(recorder)
        rounded = half is torch.bfloat16 and second in ("u", 500)
        stored = recorder.ops[recorder.ops[-1].args[2].position]
        assert stored.name == ("to_dtype" if rounded else "sub")
