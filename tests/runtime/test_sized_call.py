"""Programs bound to sizes: the code for the sizes of each call, few of them kept, fresh memory from allocations."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from stator.base.errors import MissingToolchain
from stator.runtime import build, host, launch
from stator.runtime.host import Binder, BoundSizes

OF_ROWS_AND_NUMBER = ((0, 0), (1, -1))


@pytest.fixture(params=["native", "getters"])
def make(request: pytest.FixtureRequest):
    """Makes sized calls in each of the ways there are."""
    if request.param == "getters":
        native = launch._launch
        functions = (
            *(torch.Tensor, torch.Tensor.data_ptr, torch.as_strided, torch.Tensor.storage_offset),
            *(torch.Tensor.untyped_storage, torch.get_num_threads),
        )
        native.install(None, *functions)
        layout = launch.calibrate()
        request.addfinalizer(lambda: native.install(layout and layout.as_tuple(), *functions))
    return launch.make_sized_call


def bound(*sizes: int):
    """The code of a program for these sizes."""
    return lambda *arguments: (sizes, arguments)


def test_each_call_runs_the_code_for_its_sizes(make) -> None:
    run = make(BoundSizes(bound), OF_ROWS_AND_NUMBER, False)
    for rows, number in ((3, 5), (3, 5), (4, 5), (3, 6), (3, 5), (3, -7)):
        x = torch.zeros(rows, 2)
        sizes, arguments = run(x, number, "more")
        assert sizes == (rows, number)
        assert arguments[0] is x and arguments[1:] == (number, "more")


def test_sizes_of_many_dimensions_are_read(make) -> None:
    places = tuple((0, dim) for dim in range(7)) + tuple((1, dim) for dim in range(2)) * 20
    run = make(BoundSizes(bound), places, False)
    assert run(torch.zeros(1, 2, 3, 4, 5, 6, 0), torch.zeros(8, 9))[0] == (1, 2, 3, 4, 5, 6, 0, *(8, 9) * 20)


def test_arguments_in_one_list_stay_in_it(make) -> None:
    run = make(BoundSizes(bound), OF_ROWS_AND_NUMBER, True)
    given = [torch.zeros(3), 5]
    assert run.boxed
    for _ in range(2):
        sizes, (arguments,) = run(given)
        assert sizes == (3, 5) and arguments is given


def test_code_is_bound_once_for_each_combination(make) -> None:
    met = []
    run = make(BoundSizes(lambda *sizes: met.append(sizes) or bound(*sizes)), ((0, 0),), False)
    for rows in (3, 4, 3, 4, 4, 5, 3):
        run(torch.zeros(rows))
    assert met == [(3,), (4,), (5,)]


def test_the_oldest_of_many_combinations_is_forgotten(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_SIZES", 3)
    monkeypatch.setattr(host, "_BOUND", 0)
    known = BoundSizes(bound)
    run = make(known, ((0, 0),), False)
    for rows in (1, 2, 3, 4, 5):
        assert run(torch.zeros(rows))[0] == (rows,)
    assert sorted(known) == [(3,), (4,), (5,)]
    assert run(torch.zeros(1))[0] == (1,)


def test_an_error_while_binding_leaves_the_call_usable(make) -> None:
    def at(rows: int):
        if rows == 4:
            raise OverflowError("too large")
        return bound(rows)

    run = make(BoundSizes(at), ((0, 0),), False)
    run(torch.zeros(3))
    with pytest.raises(OverflowError, match="too large"):
        run(torch.zeros(4))
    assert run(torch.zeros(3))[0] == (3,)
    assert run(torch.zeros(5))[0] == (5,)


def test_wrong_arguments_raise() -> None:
    run = launch.make_sized_call(BoundSizes(bound), OF_ROWS_AND_NUMBER, False)
    boxed = launch.make_sized_call(BoundSizes(bound), OF_ROWS_AND_NUMBER, True)
    for call, arguments in ((run, (torch.zeros(3),)), (run, ("x", 5)), (boxed, (torch.zeros(3), 5)), (boxed, ([],))):
        with pytest.raises(TypeError):
            call(*arguments)
    with pytest.raises(IndexError):
        run(torch.tensor(1.0), 5)  # it has no dimension
    with pytest.raises(OverflowError):
        run(torch.zeros(3), 2**70)


def test_threads_with_different_sizes_run_their_own_code(make) -> None:
    run, wrong = make(BoundSizes(bound), ((0, 0),), False), []

    def work(rows: int) -> None:
        x = torch.zeros(rows)
        for _ in range(2000):
            sizes, _ = run(x)
            if sizes != (rows,):
                wrong.append(sizes)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_program_in_a_cycle_is_freed(make) -> None:
    class Holder:
        run = None

    holder = Holder()
    holder.run = make(BoundSizes(lambda rows, of=holder: lambda x: of), ((0, 0),), False)
    holder.run(torch.zeros(3))
    reference = weakref.ref(holder)
    del holder
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    ("size", "stride"),
    [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (5, 1)), ((2, 1, 3), (3, 7, 1)), ((0, 4), (4, 1)), ((), ())],
)
def test_allocations_have_their_layout_and_memory_of_their_own(size, stride, dtype) -> None:
    allocate = Binder({}, {}, {}).allocation(size, stride, dtype, "cpu")
    made = [allocate() for _ in range(4)]
    for tensor in made:
        assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (size, stride, dtype)
        assert not tensor.is_inference()
        tensor.fill_(1)
    if made[0].numel():
        assert len({tensor.data_ptr() for tensor in made}) == 4


def test_allocations_follow_inference_mode() -> None:
    allocate = Binder({}, {}, {}).allocation((3,), (1,), torch.float32, "cpu")
    made = []
    for mode in (False, True, False, True):
        with torch.inference_mode(mode):
            made += [allocate(), allocate()]
    assert [tensor.is_inference() for tensor in made] == [False, False, True, True] * 2
    assert not any(tensor.requires_grad or tensor._is_view() for tensor in made)


def test_kernels_get_their_sizes() -> None:
    source = """extern "C" void stator_test_sizes(void *const *pointers, int64_t const *sizes) {
        for (int at = 0; at < 3; ++at) ((int64_t *)pointers[0])[at] = sizes[at];
    }
    """
    (address,) = build.build_kernels([SimpleNamespace(symbol="stator_test_sizes", source=source)]).values()
    out = torch.zeros(3, dtype=torch.int64)
    for sizes in ((1, 2, 3), (-4, 2**62, 0)):
        launch.make_kernel(address, 1, "sizes", sizes=sizes)(out)
        assert out.tolist() == list(sizes)
    with pytest.raises(OverflowError):
        launch.make_kernel(address, 1, "sizes", sizes=(2**63, 0, 0))


def test_without_the_extension_no_program_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_launch", None)
    with pytest.raises(MissingToolchain, match="installed without a C compiler"):
        Binder({}, {}, {})


def test_a_template_asks_for_no_memory() -> None:
    size = 1 << 24, 1 << 24  # more than any machine has
    made = Binder({}, {}, {}).template(size, (1, 1 << 24), torch.float32, "cpu")
    assert (made.shape, made.stride(), made.untyped_storage().nbytes()) == (size, (1, 1 << 24), 0)
