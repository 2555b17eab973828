"""Products by a cuBLASLt that works in the memory of the CPU, beside ATen's operators."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from fake_blas import FakeBlas, build_blas
from fake_driver import FakeDriver, build

from stator.runtime.cuda import driver, products

pytestmark = pytest.mark.skipif(driver._cuda is None, reason="needs the C extension")

USUAL = {"aten.mm.out": torch.mm, "aten.addmm.out": torch.addmm, "aten.bmm.out": torch.bmm}
HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def blas(fake: FakeDriver, tmp_path: Path) -> Iterator[FakeBlas]:
    """The library in the place of cuBLASLt; device 0 has the CPU's tensors."""
    made = build_blas(tmp_path, fake)
    extension = driver.open_driver.__wrapped__(fake.path, fake.path)
    fake.set("stream", 4242)
    assert extension.open_products(made.path)
    yield made
    assert fake.shared_object.fake_depth() == 0


class Counted:
    """An operator of ATen that counts its calls."""

    def __init__(self, name: str) -> None:
        self.name, self.calls = name, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return USUAL[self.name](*args, **kwargs)


def made(name: str) -> tuple[Callable[..., Any], Counted]:
    usual = Counted(name)
    return products.make_product(driver._cuda, name, usual, torch.device("cpu")), usual


def matrices(*size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """One matrix, or a batch, in all layouts that BLAS takes."""
    value = torch.randn(size).to(dtype)
    rows, columns = size[-2:]
    lead = size[:-2]
    wide, tall = torch.zeros(*lead, rows, columns + 3, dtype=dtype), torch.zeros(*lead, columns, rows + 8, dtype=dtype)
    wide[..., 1 : columns + 1] = value
    tall[..., 8:] = value.mT
    layouts = [value, value.mT.contiguous().mT, wide[..., 1 : columns + 1], tall[..., 8:].mT]
    if lead:
        layouts += [value.transpose(0, 1).contiguous().transpose(0, 1), value[:1].expand(*size)]
    return layouts


def check(name: str, args: tuple[torch.Tensor, ...], out: torch.Tensor, blas: FakeBlas) -> None:
    """The library, not ATen, computes a product as near to the exact one as ATen's."""
    product, usual = made(name)
    expected, before = torch.empty_like(out), blas.get("calls")
    USUAL[name](*args, out=expected)
    out.fill_(float("nan"))
    assert product(*args, out=out) is out
    assert (usual.calls, blas.get("calls")) == (0, before + 1)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("size", [(3, 5, 4), (1, 5, 4), (3, 1, 4), (3, 5, 1), (1, 1, 1), (16, 8, 24)])
def test_products_of_all_layouts(blas: FakeBlas, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    rows, depth, columns = size
    for a in matrices(rows, depth, dtype=dtype):
        for b in matrices(depth, columns, dtype=dtype):
            check("aten.mm.out", (a, b), torch.empty(rows, columns, dtype=dtype), blas)
            check("aten.mm.out", (a, b), torch.empty(rows, columns + 5, dtype=dtype)[:, 2 : columns + 2], blas)


@pytest.mark.parametrize("dtype", HALVES)
def test_products_with_a_bias(blas: FakeBlas, dtype: torch.dtype) -> None:
    for a in wide_matrices(matrices(16, 8, dtype=dtype)):
        for b in wide_matrices(matrices(8, 24, dtype=dtype)):
            check("aten.addmm.out", (torch.randn(24).to(dtype), a, b), torch.empty(16, 24, dtype=dtype), blas)
            check("aten.addmm.out", (torch.randn(24).to(dtype), a, b), torch.empty(16, 32, dtype=dtype)[:, :24], blas)


def wide_matrices(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those with rows, or columns, at multiples of 16 bytes."""
    return [one for one in given if one.data_ptr() % 16 == 0 and max(one.stride()) % 8 == 0]


@pytest.mark.parametrize("batch", (1, 3))
def test_batches_of_all_layouts(blas: FakeBlas, batch: int) -> None:
    for a in matrices(batch, 4, 5, dtype=torch.bfloat16):
        for b in matrices(batch, 5, 6, dtype=torch.bfloat16):
            check("aten.bmm.out", (a, b), torch.empty(batch, 4, 6, dtype=torch.bfloat16), blas)


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()


@pytest.mark.parametrize(
    ("name", "args", "out"),
    [
        ("aten.mm.out", (torch.randn(3, 4), torch.randn(4, 5)), torch.empty(3, 5)),
        ("aten.mm.out", (half(3, 8)[:, ::2], half(4, 5)), half(3, 5)),
        ("aten.mm.out", (half(4).expand(3, 4), half(4, 5)), half(3, 5)),
        ("aten.mm.out", (half(3, 0), half(0, 5)), half(3, 5)),
        ("aten.mm.out", (half(0, 4), half(4, 5)), half(0, 5)),
        ("aten.mm.out", (half(3, 4), half(4, 5)), half(5, 3).mT),
        ("aten.mm.out", (half(3, 4), half(4, 5)), half(0)),
        ("aten.addmm.out", (half(3, 5), half(3, 4), half(4, 5)), half(3, 5)),
        ("aten.addmm.out", (half(1), half(3, 4), half(4, 5)), half(3, 5)),
        ("aten.addmm.out", (half(16)[::2], half(3, 8), half(8, 8)), half(3, 8)),
        ("aten.addmm.out", (half(9)[1:], half(3, 8), half(8, 8)), half(3, 8)),
        ("aten.addmm.out", (half(8), half(3, 8), half(8, 9)[:, :8]), half(3, 8)),
        ("aten.addmm.out", (half(8), half(25)[1:].view(3, 8), half(8, 8)), half(3, 8)),
        ("aten.bmm.out", (half(0, 3, 4), half(0, 4, 5)), half(0, 3, 5)),
    ],
)
def test_aten_computes_what_the_library_is_not_given(
    blas: FakeBlas, name: str, args: tuple[torch.Tensor, ...], out: torch.Tensor
) -> None:
    product, usual = made(name)
    expected = USUAL[name](*args)
    assert torch.equal(product(*args, out=out), expected) and torch.equal(out, expected)
    assert (usual.calls, blas.get("calls")) == (1, 0)


def test_other_arguments_go_to_aten(blas: FakeBlas) -> None:
    product, usual = made("aten.addmm.out")
    args, out = (half(5), half(3, 4), half(4, 5)), half(3, 5)
    expected = torch.addmm(*args, beta=2, alpha=3)
    assert torch.equal(product(*args, beta=2, alpha=3, out=out), expected)
    assert torch.equal(product(*args, alpha=1), torch.addmm(*args))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        product(half(5), half(3, 4), half(3, 5), out=out)
    with pytest.raises(TypeError):
        product(half(3, 4), "matrix", half(3, 5), out=out)
    with pytest.raises(RuntimeError, match="dtype"):
        product(half(5), half(3, 4).half(), half(4, 5), out=out)
    assert (usual.calls, blas.get("calls")) == (5, 0)


@pytest.mark.parametrize("trouble", ("refuses", "fails"))
def test_aten_computes_what_the_library_refuses(blas: FakeBlas, trouble: str) -> None:
    blas.set(trouble, 1)
    product, usual = made("aten.mm.out")
    a, b, out = half(3, 4), half(4, 5), half(3, 5)
    for _ in range(2):
        assert torch.equal(product(a, b, out=out), a @ b)
    assert usual.calls == 2 and blas.get("choices") == 1
    assert blas.get("calls") == (2 if trouble == "fails" else 0)


def test_a_choice_holds_for_shapes_layouts_and_alignments(blas: FakeBlas) -> None:
    product, _ = made("aten.mm.out")
    a, b, out = half(4, 8), half(8, 8), half(4, 8)
    memory = half(4 * 8 + 1)
    for turn in range(2):
        for given in ((a, b), (a, b.mT), (a[:2], b), (memory[1:].view(4, 8), b)):
            product(*given, out=out[: given[0].shape[0]])
        assert blas.get("choices") == 4, turn
    assert blas.alignments()[1] == 2 and blas.alignments()[0] >= 16 and blas.get("reductions") == 2


def test_workspace_is_allocated_for_each_call(blas: FakeBlas) -> None:
    blas.set("wanted_workspace", 1000)
    asked: list[int] = []

    def allocate(size: int) -> torch.Tensor:
        asked.append(size)
        return torch.empty(size, dtype=torch.uint8)

    usual = Counted("aten.mm.out")
    product = driver._cuda.Product(usual, 2, False, 0, driver.device_code(torch.device("cpu")), allocate)
    a, b, out = half(3, 4), half(4, 5), half(3, 5)
    for _ in range(2):
        product(a, b, out=out)
    assert asked == [1000, 1000] and blas.get("workspace") and not usual.calls
    torch.testing.assert_close(out, a @ b)


def test_memory_that_cannot_be_allocated_raises(blas: FakeBlas) -> None:
    blas.set("wanted_workspace", 1000)

    def allocate(size: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("no memory")

    product = driver._cuda.Product(torch.mm, 2, False, 0, driver.device_code(torch.device("cpu")), allocate)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        product(half(3, 4), half(4, 5), out=half(3, 5))
    blas.set("wanted_workspace", 1 << 30)  # more than is ever asked for
    assert product(half(3, 6), half(6, 5), out=half(3, 5)).shape == (3, 5)


def test_a_product_runs_on_the_current_stream_of_its_device(blas: FakeBlas, fake: FakeDriver) -> None:
    product, _ = made("aten.mm.out")
    a, b, depths = half(3, 4), half(4, 5), []

    def on_other_device() -> None:
        fake.shared_object.cuCtxPushCurrent_v2(1001)
        product(a, b, out=half(3, 5))
        depths.append(fake.shared_object.fake_depth())
        fake.shared_object.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_uint64()))

    thread = threading.Thread(target=on_other_device)
    thread.start()
    thread.join()
    assert (blas.get("stream"), blas.get("context"), depths) == (4242, 1000, [1])


def test_many_shapes_in_threads(blas: FakeBlas) -> None:
    """More shapes than choices are kept, while other threads use them."""
    wrong: list[tuple[int, ...]] = []

    def work(seed: int) -> None:
        product, _ = made("aten.addmm.out")
        generator = torch.Generator().manual_seed(seed)
        for _ in range(600):
            rows, depth, columns = torch.randint(1, 17, (3,), generator=generator).tolist()
            depth, columns = depth * 8, columns * 8
            a, b = torch.randn(rows, depth).bfloat16(), torch.randn(depth, columns).bfloat16()
            bias, out = torch.randn(columns).bfloat16(), torch.empty(rows, columns).bfloat16()
            product(bias, a, b, out=out)
            if not torch.allclose(out, torch.addmm(bias, a, b), rtol=1.6e-2, atol=1e-2):
                wrong.append((rows, depth, columns))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and blas.get("choices") > 1024
    assert blas.get("made") <= 4 * 1024  # descriptions of choices that were replaced are freed


def test_operators_without_a_product_stay() -> None:
    device = torch.device("cuda", 0)
    assert products.direct_product("aten.baddbmm.out", torch.baddbmm, device) is torch.baddbmm
    assert products.direct_product("aten.mm.out", torch.mm, torch.device("cpu")) is torch.mm
    torch.use_deterministic_algorithms(True)
    try:
        assert products.direct_product("aten.mm.out", torch.mm, device) is torch.mm
    finally:
        torch.use_deterministic_algorithms(False)
