"""Fake tensors: metadata equals eager's, aliasing and writes are followed, data is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from stator.base.errors import Unsupported
from stator.graph.fake.fake_mode import DataDependent, FakeMode, FakeTensor
from stator.prims.record import TensorMeta
from stator.shapes.environment import Environment
from stator.shapes.sym_node import to_sym_int

aten = torch.ops.aten


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device


CASES = {
    "linear": lambda x: F.linear(x, x.new_ones(5, x.shape[-1])),
    "views": lambda x: x.transpose(-1, -2)[..., 1:].unsqueeze(0).expand(3, *x.transpose(-1, -2)[..., 1:].shape),
    "reduce": lambda x: x.sum(-1, keepdim=True) + x.mean(0),
    "compare": lambda x: (x > 0) & (x < 1),
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.0)),
    "channels last": lambda x: F.relu(x.reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
    "convolution": lambda x: F.conv2d(x.reshape(2, 3, 2, 2), torch.ones(4, 3, 1, 1)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 2, 3, 4)] * 3),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cat": lambda x: torch.cat([x, x.to(torch.float64)], 1),
    "promote": lambda x: x.to(torch.int32) * 2.5,
    "split": lambda x: x.split(2, 1)[1],
    "factory": lambda x: torch.arange(x.shape[0], dtype=torch.int16) + torch.zeros((), dtype=torch.uint8),
    "random": lambda x: F.dropout(x, 0.5) + torch.rand(x.shape),
    "in place": lambda x: x.clone().t().add_(1).unsqueeze_(0),
    "layout in place": lambda x: x.clone().t_(),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "put": lambda x: x.clone().index_put_((torch.tensor([0, 1]),), torch.tensor(1.0)),
    "setitem": lambda x: _set(x.clone()),
    "empty copy": lambda x: torch.empty(x.shape[1], x.shape[0]).t().copy_(x),
}


def _set(x: torch.Tensor) -> torch.Tensor:
    x[:, 1:] = 3
    x[x > 1] = 0
    return x


@pytest.mark.parametrize("name", CASES)
def test_metadata_equals_eager(name: str) -> None:
    real = torch.randn(4, 6)
    mode = FakeMode()
    with mode:
        fake = CASES[name](mode.from_real(real))
    assert isinstance(fake, FakeTensor)
    assert described(fake) == described(CASES[name](real))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_metadata_equals_eager_without_grad(guard: Any) -> None:
    real = torch.randn(2, 3, 4)
    mode = FakeMode()
    with guard():
        expected = F.linear(real, torch.ones(5, 4)).softmax(-1)
        with mode:
            fake = F.linear(mode.from_real(real), torch.ones(5, 4)).softmax(-1)
        assert described(fake) == described(expected)
        assert fake.is_inference() == expected.is_inference()
        assert not fake.requires_grad


def test_from_real_is_memoised_and_keeps_autograd_facts() -> None:
    mode = FakeMode()
    weight = torch.nn.Parameter(torch.ones(3, 4))
    middle = (weight * 2).t()
    fake_weight, fake_middle = mode.from_real(weight), mode.from_real(middle)
    assert mode.from_real(weight) is fake_weight
    assert (fake_weight.requires_grad, fake_weight.is_leaf) == (True, True)
    assert (fake_middle.requires_grad, fake_middle.is_leaf) == (True, False)
    assert described(fake_middle) == described(middle)
    assert isinstance(fake_weight, torch.nn.Parameter)
    with mode:
        assert (fake_weight.sum()).requires_grad
        assert not (fake_weight.detach() + 1).requires_grad
        assert torch.nn.Parameter(fake_middle.detach()).requires_grad


def test_memo_does_not_keep_tensors_alive() -> None:
    import weakref

    mode = FakeMode()
    real = torch.ones(3)
    mode.from_real(real)
    gone = weakref.ref(real)
    del real
    assert gone() is None


def test_views_share_the_storage_and_writes_are_counted() -> None:
    mode = FakeMode()
    base = torch.randn(4, 6)
    with mode:
        fake, row = mode.from_real(base), mode.from_real(base[1])
        column = fake[:, 2]
        parts = fake.split(2)
        fresh = fake + 1
        column.mul_(2)
    assert row.fake_storage is fake.fake_storage is column.fake_storage is parts[1].fake_storage
    assert fresh.fake_storage is not fake.fake_storage
    assert fake.fake_storage.version == 1


def test_set_data_takes_over_layout_and_storage() -> None:
    mode = FakeMode()
    with mode:
        target, source = torch.zeros(3), torch.ones(2, 5).t()
        target.data = source
    assert described(target) == described(source)
    assert target.fake_storage is source.fake_storage


ASK_FOR_DATA = {
    "item as an index": lambda x: x[int(x.sum().item())],
    "item in a comparison": lambda x: x if x.sum().item() > 1 else -x,
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool(x.any()),
    "int": lambda x: int(x[0, 0]),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: torch.unique(x),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x + 1),
}


@pytest.mark.parametrize("name", ASK_FOR_DATA)
def test_data_is_refused(name: str) -> None:
    mode = FakeMode()
    given = mode.from_real(torch.ones(2, 3))  # outside of the mode, in which the ones themselves would be known
    with mode, pytest.raises(DataDependent):
        ASK_FOR_DATA[name](given)


def test_values_of_small_constants_are_known_until_written() -> None:
    mode = FakeMode()
    given = mode.from_real(torch.tensor(1.0))
    with mode:
        number = torch.tensor(3.0)
        assert number.item() == 3.0
        assert (torch.tensor([1, 2, 3]) * 2)[1].item() == 4
        assert torch.tensor([[1, 2]]).tolist() == [[1, 2]]
        assert torch.tensor([0, 3]).nonzero().shape == (1, 1)
        number.add_(1)
        assert number.item() == 4.0
        assert torch.arange(4)[torch.tensor([True, False, True, True])].tolist() == [0, 2, 3]
        number.add_(given)
        with pytest.raises(DataDependent):
            float(number)


def test_following_constants_fixes_no_size() -> None:
    environment = Environment()
    size = to_sym_int(environment, environment.size("s0", 6))
    with FakeMode():
        made = torch.ops.aten.full.default([size], 1) + torch.arange(4)[:1]
    assert isinstance(made.shape[0], torch.SymInt)
    assert not any("== 0" in str(fact) for fact in environment.facts)


def test_a_real_tensor_that_is_met_has_no_value() -> None:
    captured = torch.tensor(3.0)
    with FakeMode(), pytest.raises(DataDependent):
        float(captured + 1)


def test_errors_are_those_of_eager() -> None:
    mode = FakeMode()
    with mode:
        x = mode.from_real(torch.ones(2, 3))
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            x[0].add_(x.clone())
        with pytest.raises(RuntimeError, match="can't be cast"):
            torch.ones(3, dtype=torch.int64).mul_(0.5)
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.ones(3).expand(2, 3).add_(1)
        with pytest.raises(RuntimeError):
            torch.mm(x, x)


def test_device_claims_are_kept() -> None:
    mode = FakeMode()
    cuda = torch.device("cuda", 0)
    with mode:
        x = mode.make(TensorMeta((2, 3), (3, 1), torch.float32, cuda))
        y = F.relu(x @ x.t() + 1).sum(0)
        assert y.device == cuda and x.new_zeros(3).device == cuda and x.cpu().device.type == "cpu"


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(Unsupported, match="layout"):
        FakeMode().from_real(torch.eye(3).to_sparse())


def test_storage_replacement_is_refused() -> None:
    mode = FakeMode()
    with mode, pytest.raises(Unsupported, match="storage"):
        mode.from_real(torch.ones(3)).set_(mode.from_real(torch.ones(4)))


def test_names_of_tensor_methods_are_not_hidden() -> None:
    mode = FakeMode()
    with mode:
        assert mode.from_real(torch.ones(2, 3)).mode(1).values.shape == (2,)


def test_numbers_wrapped_into_tensors_keep_their_value():
    """`torch.cov` asks whether its normalisation is positive."""
    with FakeMode():
        assert torch.scalar_tensor(3, dtype=torch.float64).item() == 3
        assert (torch.scalar_tensor(2.5) <= 0).item() is False


@pytest.mark.parametrize("operands", [(4, 3.5), (3.5, 4), (3.5, 2.5), (2.5, 2j), (True, 2.5), (3, 2)])
@pytest.mark.parametrize("packet", [aten.add, aten.mul, aten.div])
def test_operators_of_numbers_alone_promote_them_as_numbers(packet, operands):
    with FakeMode():
        result = packet(*operands)
    assert result.dtype is packet(*operands).dtype


def test_an_overload_for_tensors_is_found_behind_one_for_numbers():
    mode = FakeMode()
    with mode:
        x, index = mode.from_real(torch.ones(2, 3)), mode.from_real(torch.tensor([[0]]))
        assert aten.scatter(x, -1, index, x).shape == (2, 3)
        with pytest.raises(Unsupported, match="the text of a tensor"):
            str(x)
