"""Calling kernels on tensors and keeping views of parameters, by the C extension."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from stator.runtime import build, launch

TEXT = """
extern "C" void first_elements(void *const *p) {
    ((float *)p[2])[0] = ((float *)p[0])[0] + ((float *)p[1])[0];
}
extern "C" void out_of_range(void *const *p) {
    long long *error = (long long *)p[1];
    if (((float *)p[0])[0] < 0) { error[1] = 17; error[2] = 4; error[0] = 1; }
}
extern "C" void many(void *const *p) {
    float sum = 0;
    for (int i = 0; i < 99; ++i) sum += ((float *)p[i])[0];
    ((float *)p[99])[0] = sum;
}
"""


@pytest.fixture(scope="module")
def address() -> Callable[[str], build.KernelAddress | None]:
    entry = build.build_kernels([SimpleNamespace(symbol="first_elements", source=TEXT)])["first_elements"]
    return entry._library.address


@pytest.fixture(params=["native", "native, interpreter lock kept", "getters"])
def make(request: pytest.FixtureRequest, address: Callable[[str], int]):
    """Makes a kernel callable in each of the ways there are."""
    if request.param == "getters":
        native = launch._launch
        functions = (
            *(torch.Tensor, torch.Tensor.data_ptr, torch.as_strided, torch.Tensor.storage_offset),
            *(torch.Tensor.untyped_storage, torch.get_num_threads),
        )
        native.install(None, *functions)
        layout = launch.calibrate()
        request.addfinalizer(lambda: native.install(layout and layout.as_tuple(), *functions))
    small = "lock" in request.param
    return lambda symbol, count: launch.make_kernel(address(symbol), count, symbol, small=small)


def test_a_kernel_sees_the_first_element_of_each_tensor(make) -> None:
    a, b, out = torch.tensor([1.0, 2.0]), torch.arange(6.0).view(2, 3)[1:, 1:], torch.zeros(3)
    make("first_elements", 3)(a, b, out[1:])
    assert out.tolist() == [0.0, 5.0, 0.0]


def test_parameters_and_subclasses_are_tensors(make) -> None:
    class Mine(torch.Tensor):
        pass

    out = torch.zeros(1)
    make("first_elements", 3)(torch.nn.Parameter(torch.ones(2)), torch.ones(1).as_subclass(Mine), out)
    assert out.item() == 2.0


def test_more_arguments_than_fit_on_the_stack(make) -> None:
    tensors = [torch.full((1,), float(number)) for number in range(100)]
    make("many", 100)(*tensors)
    assert tensors[99].item() == sum(range(99))


def test_an_index_out_of_range_is_an_index_error(make) -> None:
    kernel = make("out_of_range", 1)
    assert kernel(torch.ones(1)) is None
    with pytest.raises(IndexError, match="index 17 is out of bounds for dimension with size 4"):
        kernel(-torch.ones(1))
    assert kernel(torch.ones(1)) is None  # the error does not stick


@pytest.mark.parametrize("arguments", [(), (torch.ones(1),), (torch.ones(1),) * 4, (torch.ones(1), 1, torch.ones(1))])
def test_wrong_arguments_are_a_type_error(make, arguments: tuple) -> None:
    with pytest.raises(TypeError):
        make("first_elements", 3)(*arguments)


def test_a_tensor_whose_memory_was_released_is_refused(make) -> None:
    gone = torch.ones(4)
    gone.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="without memory"):
        make("out_of_range", 1)(gone)


def test_an_empty_tensor_has_no_memory_and_is_fine(make, address: Callable[[str], int]) -> None:
    nothing = build.build_kernels(
        [SimpleNamespace(symbol="nothing", source='extern "C" void nothing(void *const *) {}')]
    )
    assert launch.make_kernel(nothing["nothing"], 1, "nothing")(torch.empty(0, 3)) is None


def test_a_kernel_outlives_the_address_that_it_was_made_from() -> None:
    text = 'extern "C" void outlives(void *const *p) { *(float *)p[0] = 5; }'
    address = build.build_kernels([SimpleNamespace(symbol="outlives", source=text)])["outlives"]
    library = weakref.ref(address._library)
    kernel = launch.make_kernel(address, 1, "outlives")
    del address
    out = torch.zeros(1)
    kernel(out)
    assert out.item() == 5 and library() is not None
    del kernel
    assert library() is None


def test_kernels_run_in_several_threads(make) -> None:
    kernel = make("first_elements", 3)
    wrong = []

    def work(number: int) -> None:
        a, b, out = torch.full((1,), float(number)), torch.ones(1), torch.zeros(1)
        for _ in range(500):
            kernel(a, b, out)
            if out.item() != number + 1.0:
                wrong.append(out.item())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.fixture
def transposed():
    return launch.make_static_view((4, 3), (1, 4), 0)


@torch.no_grad()
def test_a_view_shares_memory_and_follows_changes_in_place(transposed) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4))
    assert torch.equal(transposed(weight), weight.t())
    weight.add_(1.0)
    assert torch.equal(transposed(weight), weight.t())


@torch.no_grad()
@pytest.mark.parametrize("swap", ["data", "set_", "offset", "resize storage", "other tensor"])
def test_a_view_follows_a_swap_of_the_memory(transposed, swap: str) -> None:
    weight = torch.nn.Parameter(torch.randn(3, 4))
    transposed(weight)
    if swap == "data":
        weight.data = torch.randn(3, 4)
    elif swap == "set_":
        weight.set_(torch.randn(3, 4))
    elif swap == "offset":
        weight.data = torch.randn(6, 4)
        transposed(weight)
        weight.data = weight.data.as_strided((3, 4), (4, 1), 8)
    elif swap == "resize storage":
        weight.untyped_storage().resize_(0)
        weight.untyped_storage().resize_(48)
        weight.copy_(torch.randn(3, 4))
    else:
        weight = torch.nn.Parameter(torch.randn(3, 4))
    assert torch.equal(transposed(weight), weight.t())


@torch.no_grad()
def test_memory_that_comes_back_at_the_same_address_is_not_mistaken(transposed) -> None:
    for value in range(50):
        weight = torch.full((3, 4), float(value))  # freed and allocated again, mostly at one address
        assert torch.equal(transposed(weight), weight.t())
        del weight


@torch.no_grad()
def test_views_of_one_storage_are_made_once() -> None:
    view, weight = launch.make_static_view((4, 3), (1, 4), 0), torch.randn(3, 4)
    assert view(weight) is view(weight)


def test_a_view_object_does_not_keep_itself_alive() -> None:
    view = launch.make_static_view((2,), (1,), 1)
    made = view(torch.arange(3.0))
    assert made.tolist() == [1.0, 2.0]
    alive = weakref.ref(made)
    del made, view
    gc.collect()
    assert alive() is None


def test_dispatch_keys_are_those_that_torch_names() -> None:
    made = torch.ones(3, dtype=torch.complex64)
    for tensor in (torch.ones(3), torch.ones(3, requires_grad=True), torch.ones(3, device="meta"), made.conj()):
        assert launch.dispatch_keys(tensor) == torch._C._dispatch_keys(tensor).raw_repr()


def test_places_are_storages_and_offsets() -> None:
    base = torch.arange(6.0)
    tensors = [base, base[2:], torch.randn(2)]
    found = memoryview(launch.places(tensors)).cast("q").tolist()
    expected = [(tensor.untyped_storage()._cdata, tensor.storage_offset()) for tensor in tensors]
    assert found == [number for pair in expected for number in pair]


def test_memory_is_places_and_storages() -> None:
    tensors = [torch.randn(2), torch.randn(4)[1:]]
    where, storages = launch.memory(tensors)
    assert where == launch.places(tensors)
    assert [one.data_ptr() for one in storages] == [one.untyped_storage().data_ptr() for one in tensors]


def test_tensors_lie_at_their_places_until_their_data_are_replaced() -> None:
    tensors = [torch.randn(2), torch.randn(4)]
    where = launch.places(tensors)
    assert launch.lie_at(tensors, where) and not launch.lie_at(tensors[:1], where)
    held = tensors[1].untyped_storage()  # so that its address is not used again
    tensors[1].data = torch.randn(4)
    assert not launch.lie_at(tensors, where) and held.nbytes() == 16


def test_tensors_of_inference_mode_have_no_version() -> None:
    written = torch.zeros(2).add_(1)
    with torch.inference_mode():
        without = torch.zeros(2)
    assert launch.versions([written, without]) == [1, launch.UNCHECKED_VERSION]


@pytest.mark.parametrize(
    "other",
    [torch.zeros(3, 2).t(), torch.zeros(6), torch.zeros(2, 3, dtype=torch.complex64).conj(), torch.zeros(2, 3, 1)],
)
def test_layouts_tell_strides_and_dispatch_keys_apart(other: torch.Tensor) -> None:
    first = torch.zeros(2, 3)
    assert launch.layouts([first, first]) == launch.layouts([torch.ones(2, 3), first])
    assert launch.layouts([first, other]) != launch.layouts([first, first])
    assert launch.layouts([other, first]) != launch.layouts([first, first])


@pytest.mark.parametrize("pack", [launch.layouts, launch.places, launch.memory, launch.versions])
def test_only_tensors_are_packed(pack: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="a tensor is expected, not int"):
        pack([torch.zeros(2), 3])
    with pytest.raises(TypeError, match="a list or tuple is expected, not Tensor"):
        pack(torch.zeros(2))
