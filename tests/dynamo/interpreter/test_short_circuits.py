"""A branch on a number that the graph computes is none where `and` and `or` have one result for both of its truths."""

from __future__ import annotations

import pytest
import torch
from tests.differential import EXACT, FUSED, Counts, Tolerance, assert_same

import stator
from stator.base import counters


def in_values(n, flag, mask):
    causal = n > 1 and mask is None and flag
    return causal, n < 3 or not causal


def in_branches(n, flag, mask):
    if n > 1 and mask is None and flag:
        return 1
    return 2 if n > 3 or not flag else 3


def of_numbers(n, flag, mask):
    return n and flag  # 0 and False are two results


@pytest.mark.parametrize("mask", [None, torch.ones(2)], ids=["no_mask", "mask"])
@pytest.mark.parametrize(("decide", "breaks"), [(in_values, 0), (in_branches, 0), (of_numbers, 1)])
def test_what_both_truths_lead_to(decide, mask, breaks: int) -> None:
    def program(x, flag):
        n = x[x > 0].shape[0]
        return x * 2, decide(n, flag, mask), n

    compiled = stator.compile(program, backend="eager")
    counters.clear()
    for count in (0, 1, 2, 4, 7):
        x = torch.cat([torch.ones(count), -torch.ones(9 - count)])
        found, expected = compiled(x, False), program(x, False)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:] and type(found[1]) is type(expected[1])
    assert min(counters.counts["graph_breaks"], 1) == breaks


def attention_as_transformers_calls_it(query, keys, mask, causal):
    rows, length = query.shape[2], keys.shape[2]
    if (rows == 1 or length == rows) and mask is None:
        query = query * 2
    causal = rows > 1 and mask is None and causal
    if causal and mask is None and rows > 1 and length > rows:
        keys = keys[:, :, :rows]
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, keys, keys, attn_mask=mask, is_causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize(("backend", "tolerance"), [("eager", EXACT), ("inductor", FUSED)])
def test_one_version_serves_one_row_and_more(causal: bool, heads: int, backend: str, tolerance: Tolerance) -> None:
    """Queries and keys of one tensor: a causal mask hides nothing of a single row, and the other branches meet. All
    heads may share their keys."""

    def program(x):
        return attention_as_transformers_calls_it(x, x[:, :heads], None, causal)

    compiled = stator.compile(program, dynamic=True, backend=backend)
    counts = Counts()
    for batch, rows in ((2, 4), (1, 1), (3, 7), (2, 1), (1, 2)):
        x = torch.randn(batch, 3, rows, 8)
        assert_same(compiled(x), program(x), tolerance)
    assert counts.compilations == 1


def one_row_or_equal(x, y):
    rows, length = x.shape[0], y.shape[0]
    if rows == 1 or length == rows:
        return x * 2, y
    return x + y.sum(), y


def more_rows_and_others(x, y):
    rows, length = x.shape[0], y.shape[0]
    if rows != 1 and length != rows:
        return x + y.sum(), y
    return x * 2, y


@pytest.mark.parametrize("program", [one_row_or_equal, more_rows_and_others])
def test_where_both_parts_hold_the_version_is_not_for_one_row_alone(program) -> None:
    compiled = stator.compile(program, dynamic=True, backend="eager")
    counts = Counts()
    for rows, others in ((1, 1), (5, 5), (7, 7), (1, 1)):
        x, y = torch.randn(rows), torch.randn(others)
        assert_same(compiled(x, y), program(x, y), EXACT)
    assert counts.compilations == 1
    for rows, others in ((1, 4), (3, 4), (1, 2), (4, 4), (2, 1)):
        x, y = torch.randn(rows), torch.randn(others)
        assert_same(compiled(x, y), program(x, y), EXACT)
    assert counts.compilations == 3


def test_a_mask_that_hides_keys_needs_a_version_for_one_row() -> None:
    """Cached keys: `is_causal` is False for one row, which sees all of them, and True for more."""
    compiled = stator.compile(attention_as_transformers_calls_it, dynamic=True, backend="eager")
    for rows, length in ((4, 4), (1, 6), (3, 9), (1, 1), (2, 2)):
        query, keys = torch.randn(2, 3, rows, 8), torch.randn(2, 3, length, 8)
        assert torch.equal(
            compiled(query, keys, None, True), attention_as_transformers_calls_it(query, keys, None, True)
        )


def test_conditions_that_are_results() -> None:
    """`n > 3 and True` is `n > 3`, which stays a number of the graph."""

    def program(x, flag):
        n = x[x > 0].shape[0]
        return x * 2, n > 3 and flag is None, n < 2 or flag is not None

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    for count in (1, 2, 4, 7):
        x = torch.cat([torch.ones(count), -torch.ones(9 - count)])
        assert compiled(x, None)[1:] == program(x, None)[1:]


CALLS: list[int] = []


def asks():
    return stator.is_compiling()


def asks_behind_an_import():
    try:
        import torch

        return torch.compiler.is_compiling()
    except Exception:
        return False


def asks_another_function():
    return asks()


def counts_its_calls():
    CALLS.append(1)
    return True


def calls_a_tensor_function():
    return torch.get_num_threads() > 0


@pytest.mark.parametrize(
    ("question", "versions"),
    [
        (asks, 1),
        (asks_behind_an_import, 1),
        (asks_another_function, 1),
        (counts_its_calls, 2),
        (calls_a_tensor_function, 2),
    ],
)
def test_questions_behind_the_first_operand(question, versions: int) -> None:
    """A function that only asks whether code is compiled has one answer, and no effect: both truths of `n == 1` lead to
    one place. Another function is called where the program calls it."""

    def program(x):
        if x.shape[0] == 1 and not question():
            return x * 3
        return x * 2

    compiled, counts = stator.compile(program, dynamic=True, backend="eager"), Counts()
    CALLS.clear()
    for rows in (4, 1, 7, 1, 2):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), x * 2)
    assert counts.compilations == versions
    assert len(CALLS) == 2 * (question is counts_its_calls)
