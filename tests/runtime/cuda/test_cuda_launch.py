"""Launches on a driver that records them, with kernels that Triton's compiler has made for a GPU."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from fake_driver import FakeDriver, build
from printed import printed

from stator.runtime.cuda import compile_service, driver, kernels, load_kernels, machine_code
from stator.runtime.tensor_impl import calibrate

pytestmark = pytest.mark.skipif(
    driver._cuda is None or find_spec("triton") is None, reason="needs the C extension and Triton"
)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeDriver]:
    """The recording driver in the place of libcuda. Its device 0 has the CPU's tensors."""
    patch = pytest.MonkeyPatch()
    patch.setenv("STATOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    made = build(tmp_path_factory.mktemp("driver"))
    extension = driver.open_driver.__wrapped__(made.path, made.path)
    patch.setattr(kernels, "open_driver", lambda: extension)
    patch.setattr(kernels, "_functions", {})
    machine_code.forget_compiled()
    made.set("parameter_count", 5)
    made.set("stream", 4242)
    yield made
    machine_code.forget_compiled()
    compile_service.stop()
    patch.undo()


@pytest.fixture(scope="module")
def kernel(fake: FakeDriver) -> kernels.TritonKernel:
    return load_kernels([printed()], torch.device("cpu"), 90)["kernel_a"]


@pytest.fixture(params=(True, False), ids=("by offset", "by getters"))
def layout(request: pytest.FixtureRequest, fake: FakeDriver) -> Iterator[None]:
    """How addresses and devices are read."""

    def install(offsets: tuple | None) -> None:
        driver._cuda.install(offsets, torch.Tensor, torch.Tensor.data_ptr, torch.Tensor.get_device, None)

    found = calibrate()
    assert found is not None
    install(found.as_tuple() if request.param else None)
    yield
    install(found.as_tuple())


def test_a_launch_passes_addresses_sizes_and_no_scratch(
    layout: None, kernel: kernels.TritonKernel, fake: FakeDriver
) -> None:
    given, out = torch.randn(3, 1024), torch.empty(3, 1024)
    assert kernel.bind(2, (3,))(given, out) is None
    (launch,) = fake.launches()
    assert launch.parameters == (given.data_ptr(), out.data_ptr(), 3, 0, 0)
    assert launch.grid == (3, 1, 1) and launch.threads == 128 and launch.stream == 4242
    assert launch.context == 1000 and fake.shared_object.fake_depth() == 0
    assert fake.names()[launch.function - 7000] == "kernel_a"


def test_tensors_at_odd_addresses_run_another_variant(
    layout: None, kernel: kernels.TritonKernel, fake: FakeDriver
) -> None:
    memory, out = torch.randn(1025), torch.empty(1024)
    run = kernel.bind(2, (1,))
    for given in (memory[:1024], memory[1:], memory[:1024]):
        run(given, out)
    first, second, third = fake.launches()
    assert first.function == third.function != second.function
    assert second.parameters[0] == memory.data_ptr() + 4


def test_only_calls_with_large_sizes_run_the_variant_of_64_bit_indices(
    kernel: kernels.TritonKernel, fake: FakeDriver
) -> None:
    given, out = torch.randn(1024), torch.empty(1024)
    for rows in (2**21 - 1, 2**21):
        kernel.bind(2, (rows,))(given, out)
    narrow, wide = fake.launches()
    assert narrow.function != wide.function and wide.parameters[2] == 2**21


def test_variants_are_loaded_once(kernel: kernels.TritonKernel, fake: FakeDriver) -> None:
    kernel.bind(2, (1,))(torch.zeros(1024), torch.zeros(1024))
    before = fake.get("module_count")
    again = load_kernels([printed()], torch.device("cpu"), 90)["kernel_a"]
    again.bind(2, (2,))(torch.zeros(2048), torch.zeros(2048))
    assert fake.get("module_count") == before
    assert len({launch.function for launch in fake.launches()}) == 1


def test_a_grid_of_no_programs_is_not_launched(kernel: kernels.TritonKernel, fake: FakeDriver) -> None:
    kernel.bind(2, (0,))(torch.zeros(0), torch.zeros(0))
    assert fake.launches() == []


def test_a_launch_in_the_devices_context_leaves_contexts_alone(kernel: kernels.TritonKernel, fake: FakeDriver) -> None:
    run, tensors = kernel.bind(2, (1,)), (torch.zeros(1024), torch.zeros(1024))
    depths = []

    def on_other_device() -> None:
        fake.shared_object.cuCtxPushCurrent_v2(1001)
        run(*tensors)
        depths.append(fake.shared_object.fake_depth())

    thread = threading.Thread(target=on_other_device)
    thread.start()
    thread.join()
    assert depths == [1] and [launch.context for launch in fake.launches()] == [1000]


def test_wrong_arguments_are_refused(layout: None, kernel: kernels.TritonKernel, fake: FakeDriver) -> None:
    run, tensor = kernel.bind(2, (1,)), torch.zeros(1024)
    with pytest.raises(TypeError, match="kernel kernel_a takes 2 tensors, not 1 arguments"):
        run(tensor)
    with pytest.raises(TypeError, match="argument 1 of kernel kernel_a must be a tensor, not int"):
        run(tensor, 3)
    with pytest.raises(RuntimeError, match=r"argument 0 of kernel kernel_a is (on meta|a tensor without memory)"):
        run(tensor.to("meta"), tensor)
    emptied = torch.zeros(1024)
    emptied.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="argument 1 of kernel kernel_a is a tensor without memory"):
        run(tensor, emptied)
    with pytest.raises(OverflowError):
        kernel.bind(2, (2**31,))
    assert fake.launches() == []


def test_a_failed_launch_names_the_kernel_and_the_error(kernel: kernels.TritonKernel, fake: FakeDriver) -> None:
    fake.set("fail", 1)
    with pytest.raises(RuntimeError, match=r"launching kernel kernel_a failed: made to fail \(CUDA_ERROR_FAKE"):
        kernel.bind(2, (1,))(torch.zeros(1024), torch.zeros(1024))
    fake.set("fail", 0)


def test_much_shared_memory_is_asked_for(fake: FakeDriver) -> None:
    extension = kernels.open_driver()
    extension.load_function(b"\x7fELF", "small", 48 << 10, 0)
    assert fake.get("attribute") == 0
    extension.load_function(b"\x7fELF", "large", 100 << 10, 1)
    assert fake.get("attribute") == 100 << 10
    with pytest.raises(RuntimeError, match="loading kernel damaged failed"):
        extension.load_function(b"damaged", "damaged", 0, 0)
    with pytest.raises(RuntimeError, match="CUDA device 2 cannot be used"):
        extension.load_function(b"\x7fELF", "absent", 0, 2)


def test_streams_are_asked_of_python_where_the_library_does_not_tell(
    kernel: kernels.TritonKernel, fake: FakeDriver
) -> None:
    extension, found = kernels.open_driver(), calibrate()
    assert found is not None
    assert not extension.open_driver(fake.path, "libabsent.so")
    try:
        current = lambda device: 99 + device  # noqa: E731
        extension.install(found.as_tuple(), torch.Tensor, torch.Tensor.data_ptr, torch.Tensor.get_device, current)
        kernel.bind(2, (1,))(torch.zeros(1024), torch.zeros(1024))
        assert [launch.stream for launch in fake.launches()] == [99]
    finally:
        assert extension.open_driver(fake.path, fake.path)
