"""Views, copies, joins and creation against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lowering_oracle import assert_lowers, library_calls, loop_nodes, lowered_of

import stator


def test_zero_sized_views():
    x = torch.randn(0, 4)
    assert_lowers(lambda x: (x.reshape(2, 0) + 1, torch.cat([x, x]), x.t() * 2, F.pad(x, (0, 0, 1, 1))), x)


def test_cat_writes_each_computed_part_into_the_result():
    x, y = torch.randn(3, 4), torch.randn(2, 4)
    lowered = assert_lowers(lambda x, y: torch.cat([x.exp(), y * 2], 0), x, y)
    assert len(loop_nodes(lowered)) == 2
    assert len({node.outputs for node in loop_nodes(lowered)}) == 1


def test_an_input_named_like_an_operators_option_is_not_taken_for_it():
    def function(none, w):
        return F.gelu(torch.mm(none, w))

    lowered = lowered_of(function, [torch.randn(128, 128), torch.randn(128, 128)])
    assert "none" not in lowered.buffers


def test_a_growing_list_is_written_once_into_one_buffer():
    def dense(x):
        features = [x]
        for _ in range(3):
            features.append((torch.cat(features, 1) if len(features) > 1 else x).mean(1, keepdim=True).sin())
        return torch.cat(features, 1) * 2

    lowered = assert_lowers(dense, torch.randn(2, 3, 4))
    joined = {node.outputs[0] for node in loop_nodes(lowered) if len(node.body.ops) == 2}
    written = [node.outputs[0] for node in loop_nodes(lowered)]
    (shared,) = {name for name in written if written.count(name) > 1}
    assert written.count(shared) == 4 and shared in joined


def test_a_growing_list_whose_beginning_gets_out_is_not_shared():
    def dense(x, y, z):
        first = torch.cat([x, y], 1)
        return first, torch.cat([x, y, z], 1)

    assert_lowers(dense, torch.randn(2, 3), torch.randn(2, 1), torch.randn(2, 2))


def test_cat_of_different_dtypes():
    assert_lowers(lambda x, y: torch.cat([x, y], 0), torch.randn(3), torch.randint(0, 4, (2,)))


def test_clone_of_an_input_is_not_the_input():
    x = torch.randn(4)
    lowered = lowered_of(lambda x: x.clone(), [x])
    assert lowered.outputs != lowered.inputs


@pytest.mark.parametrize("columns", [slice(None), slice(1, 5)])
def test_a_clone_that_the_library_reads_is_stored_once(columns):
    def product(x, w):
        y = x.transpose(0, 1)[..., columns].clone(memory_format=torch.contiguous_format)
        return torch.mm(y.view(12, -1), w[columns]), y

    lowered = assert_lowers(product, torch.randn(3, 4, 6), torch.randn(6, 5), library=1, tolerance=1e-5)
    assert len(loop_nodes(lowered)) == 1


def test_a_clone_that_several_products_read_through_views_is_stored_once():
    def gradients(x):
        y = x.permute(1, 0, 2).reshape(12, 6)
        return torch.mm(y, y[:6]), torch.mm(y.t(), y), y.sum(0)

    lowered = assert_lowers(gradients, torch.randn(3, 4, 6), library=2, tolerance=1e-5)
    assert len(loop_nodes(lowered)) == 2


def test_slice_and_select_scatter():
    x, y = torch.randn(4, 6), torch.randn(2, 6)
    assert_lowers(lambda x, y: torch.slice_scatter(x, y, 0, 1, 3), x, y)
    assert_lowers(lambda x, y: torch.slice_scatter(x, y, 0, 0, 4, 2), x, y)
    assert_lowers(lambda x, y: torch.slice_scatter(x, y, 0, 1, 4, 2), x, y)
    assert_lowers(lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 1, -1, 3), x, torch.randn(4, 6))
    assert_lowers(lambda x, y: torch.slice_scatter(x, y[:0], 0, 3, 3), x, y)
    assert_lowers(lambda x, y: torch.select_scatter(x, y[:, 0], 1, -2), torch.randn(2, 6), y)

    def assign(x, y):
        z = x.clone()
        z[1:3, 2:4] = y[:, :2]
        return z

    assert_lowers(assign, x, y)


def test_as_strided_of_input_and_computed():
    x = torch.randn(24)
    assert_lowers(lambda x: x.as_strided((3, 4), (1, 5)) + 1, x)
    assert_lowers(lambda x: (x * 2).as_strided((3, 4), (1, 5), 2), x)


def test_transposed_weight_is_passed_to_the_library_without_a_copy():
    lowered = assert_lowers(lambda x, w: x @ w.t(), torch.randn(5, 8), torch.randn(3, 8), library=1, tolerance=1e-5)
    assert not loop_nodes(lowered)


def test_heads_are_passed_to_batched_products_without_copies():
    def attention(x):
        q = x.view(7, 2, 4).transpose(0, 1)
        return torch.bmm(q, q.transpose(1, 2))

    lowered = assert_lowers(attention, torch.randn(7, 8), library=1, tolerance=1e-5)
    assert not loop_nodes(lowered)


def test_bias_is_added_by_the_loops_that_follow():
    def block(x, w, b):
        return F.gelu(F.linear(x, w, b))

    lowered = assert_lowers(block, torch.randn(5, 8), torch.randn(3, 8), torch.randn(3), library=1, tolerance=1e-5)
    assert len(loop_nodes(lowered)) == 1
    assert library_calls(lowered)[0].target is torch.ops.aten.mm.out


PARTS_OF_REORDERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flipped": lambda x: x.flip(1)[:, 1:],
    "rolled": lambda x: x.roll(1, 1)[:, 2:].transpose(0, 1),
    "repeated": lambda x: x.repeat(1, 2, 1)[:, 1:, 0],
    "flipped twice": lambda x: x.flip(1)[:, 1:].flip(0)[1:],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PARTS_OF_REORDERED)
def test_a_part_of_a_reordered_tensor_has_eagers_layout(name: str, dynamic: bool) -> None:
    program, x = PARTS_OF_REORDERED[name], torch.randn(3, 7, 4)
    compiled = stator.compile(program, dynamic=dynamic)
    for given in (x, x.transpose(0, 2).contiguous().transpose(0, 2)):
        found, expected = compiled(given), program(given)
        assert found.stride() == expected.stride() and torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "symbolic"])
def test_short_parts_of_equal_shape_are_written_in_one_pass(dtype: torch.dtype, dynamic: bool) -> None:
    torch.manual_seed(0)
    x, y, wide = (torch.randn(size).mul(9).to(dtype) for size in ((70, 37), (70, 37), (3, 2048)))

    def function(x, y, wide):
        half = x.shape[1] // 2
        rotated = torch.cat([-x[:, half:], x[:, :half]], 1)  # of unequal parts, where half is rounded
        joined = torch.cat([x + y, x.t().contiguous().t(), y * x], 1)
        return (
            rotated,
            joined,
            torch.stack([x, y.abs()], -1),
            torch.cat([joined, joined], -1),
            torch.cat([wide, wide], 1),
        )

    arguments = (x, y, wide)
    compiled = stator.compile(function, dynamic=dynamic, options={"verify": True})
    tolerance = 2e-2 if dtype is torch.bfloat16 else 0
    torch.testing.assert_close(compiled(*arguments), function(*arguments), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("shape", "nodes"), [((70, 37), 1), ((3, 2048), 2), ((1, 37), 2)], ids=str)
def test_parts_are_written_in_one_pass_where_they_alternate_within_a_page(shape: tuple[int, int], nodes: int) -> None:
    lowered = assert_lowers(lambda x, y: torch.cat([x.exp(), y * 2], 1), torch.randn(shape), torch.randn(shape))
    assert len(loop_nodes(lowered)) == nodes
