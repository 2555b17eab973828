"""Segments of programs on a driver that records, with products that a fake cuBLASLt computes in the CPU's memory."""

from __future__ import annotations

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

CPU = torch.device("cpu")
OUT = ("out",)


class World:
    def __init__(self, fake: FakeDriver, blas: FakeBlas) -> None:
        self.fake, self.blas = fake, blas
        self.product = products.make_product(driver._cuda, "aten.mm.out", torch.mm, CPU)

    def segment(self, count: int, *steps: tuple[Callable[..., Any], tuple[int, ...], tuple[str, ...]]) -> Any:
        return driver._cuda.Segment("steps", 0, count, steps)

    def chain(self) -> Any:
        """The product of four matrices."""
        return self.segment(
            7, (self.product, (0, 1, 4), OUT), (self.product, (4, 2, 5), OUT), (self.product, (5, 3, 6), OUT)
        )

    def replays(self) -> int:
        return self.fake.get("graph_launches")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    fake = build(tmp_path)
    blas = build_blas(tmp_path, fake)
    extension = driver.open_driver.__wrapped__(fake.path, fake.path)
    fake.set("stream", 4242)
    assert extension.open_products(blas.path)
    yield World(fake, blas)
    assert fake.shared_object.fake_depth() == 0


def matrices(count: int) -> list[torch.Tensor]:
    return [torch.randn(8, 8).bfloat16() for _ in range(count)]


def expected(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] @ tensors[1] @ tensors[2] @ tensors[3]


def check(segment: Any, tensors: list[torch.Tensor]) -> None:
    for one in tensors[:4]:
        one.normal_()
    for one in tensors[4:]:
        one.fill_(float("nan"))
    assert segment(*tensors) is None
    torch.testing.assert_close(tensors[6], expected(tensors))


def test_a_segment_is_recorded_once_its_addresses_come_again(world: World) -> None:
    segment, tensors = world.chain(), matrices(7)
    for replays in (0, 0, 1, 2, 3):
        check(segment, tensors)
        assert world.replays() == replays
    assert world.fake.get("graphs") == 1 and world.blas.get("stream") == 4242
    del segment
    assert world.fake.get("graphs") == 0


def test_other_addresses_run_step_by_step(world: World) -> None:
    segment, memory = world.chain(), [matrices(7) for _ in range(5)]
    for _ in range(3):
        for tensors in memory:
            check(segment, tensors)
    assert world.replays() == 0
    for tensors in memory[:2]:
        for _ in range(3):
            check(segment, tensors)
    assert world.replays() == 2 and world.fake.get("graphs") == 2
    for tensors in memory:  # the third one takes the place of the first one
        for _ in range(3):
            check(segment, tensors)
    assert world.fake.get("graphs") == 2


@pytest.mark.parametrize("position", range(7))
def test_each_tensor_may_move(world: World, position: int) -> None:
    segment, tensors = world.chain(), matrices(7)
    for _ in range(4):
        check(segment, tensors)
    before = world.replays()
    tensors[position] = matrices(1)[0]
    check(segment, tensors)
    assert world.replays() == before


def test_addresses_that_keep_changing_are_recorded_only_a_few_times(world: World) -> None:
    segment, kept = world.chain(), []
    for _ in range(40):
        kept.append(matrices(7))
        for _ in range(2):
            check(segment, kept[-1])
    first = world.blas.get("calls")
    kept.append(matrices(7))
    for _ in range(2):
        check(segment, kept[-1])
    assert world.blas.get("calls") == first + 6


def test_nothing_is_recorded_while_a_program_captures_a_graph_of_its_own(world: World) -> None:
    segment, tensors = world.chain(), matrices(7)
    world.fake.set("capturing", 1)
    for _ in range(4):
        check(segment, tensors)
    assert world.replays() == world.fake.get("graphs") == 0
    world.fake.set("capturing", 0)
    for _ in range(3):
        check(segment, tensors)
    assert world.replays() == 1
    world.fake.set("capturing", 1)
    check(segment, tensors)
    assert world.replays() == 1


def test_a_product_that_the_library_does_not_compute_is_not_recorded(world: World) -> None:
    """ATen computes the second product, whose matrix has another dtype; it must not run while others are recorded."""
    calls: list[int] = []

    def usual(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return torch.mm(*args, **kwargs)

    product = products.make_product(driver._cuda, "aten.mm.out", usual, CPU)
    segment = world.segment(5, (product, (0, 1, 2), OUT), (product, (3, 3, 4), OUT))
    tensors = [*matrices(3), torch.randn(8, 8), torch.empty(8, 8)]
    for turn in range(4):
        segment(*tensors)
        assert len(calls) == turn + 1
        torch.testing.assert_close(tensors[2], tensors[0] @ tensors[1])
        torch.testing.assert_close(tensors[4], tensors[3] @ tensors[3])
    assert world.replays() == world.fake.get("graphs") == 0


def test_a_product_with_a_workspace_is_not_recorded(world: World) -> None:
    world.blas.set("wanted_workspace", 64)
    segment, tensors = world.chain(), matrices(7)
    for _ in range(4):
        check(segment, tensors)
    assert world.replays() == world.fake.get("graphs") == 0


def test_a_driver_that_makes_no_graphs(world: World) -> None:
    world.fake.set("refuse_graphs", 1)
    segment, tensors = world.chain(), matrices(7)
    for _ in range(4):
        check(segment, tensors)
    assert world.replays() == 0


def test_a_graph_that_cannot_be_launched_raises(world: World) -> None:
    segment, tensors = world.chain(), matrices(7)
    for _ in range(3):
        check(segment, tensors)
    world.fake.set("fail_graphs", 1)
    with pytest.raises(RuntimeError, match="launching a graph that starts with kernel steps failed: made to fail"):
        segment(*tensors)
    world.fake.set("fail_graphs", 0)
    check(segment, tensors)


def test_functions_of_python_are_steps_too(world: World) -> None:
    seen: list[tuple[int, ...]] = []
    segment = world.segment(2, (lambda a, b: seen.append((a, b)), (1, 0), ()), (lambda a: seen.append((a,)), (0,), ()))
    for _ in range(3):
        segment(7, 8)
    assert seen == [(8, 7), (7,)] * 3 and world.fake.get("graphs") == 0


def test_an_exception_ends_a_segment(world: World) -> None:
    seen: list[int] = []

    def fail(a: object) -> None:
        raise ValueError("of a step")

    segment = world.segment(1, (seen.append, (0,), ()), (fail, (0,), ()), (seen.append, (0,), ()))
    with pytest.raises(ValueError, match="of a step"):
        segment(1)
    assert seen == [1]
    with pytest.raises(TypeError, match="takes 7 tensors"):
        world.chain()(*matrices(6))
    with pytest.raises(ValueError, match="does not have"):
        world.segment(2, (fail, (2,), ()))


def test_threads(world: World) -> None:
    segment, wrong = world.chain(), []

    def work() -> None:
        tensors = matrices(7)
        for _ in range(50):
            for one in tensors[:4]:
                one.normal_()
            segment(*tensors)
            if not torch.allclose(tensors[6], expected(tensors), rtol=0.05, atol=0.5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
