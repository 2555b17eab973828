"""Convolutions of images of one position: the operators' bits, or none at all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from tests.threads import threads

from stator.runtime import single_positions
from stator.runtime.single_positions import ALONE, Mask, Product, Sizes, Way, agreeing

Tensor = torch.Tensor
needs_avx512 = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="which orders oneDNN adds up in is known for AVX512"
)
GRADIENTS = ("data", "weight", "bias")
# more than one chain of 256; no whole vectors; more images than are computed at a time, and one
SIZES = [
    *(Sizes(2, *pair) for pair in ((24, 8), (8, 24), (152, 38), (368, 92), (92, 368), (17, 5), (1, 3), (3, 1))),
    *(Sizes(batch, 33, 20) for batch in (1, 3, 4, 5, 8, 16)),
    Sizes(8, 672, 168),
    Sizes(9, 16, 300),
]


def operands(sizes: Sizes, scale: float = 1.0) -> dict[str, Tensor]:
    return {name: torch.randn(sizes.of(name)) * scale for name in ("x", "weight", "bias", "grad")}


def by_autograd(what: str, given: dict[str, Tensor], asked: Mask) -> Tensor:
    x, weight, bias = (given[name].clone() for name in ("x", "weight", "bias"))
    if what in ("forward", "biased"):
        return torch.nn.functional.conv2d(x, weight, bias if what == "biased" else None)
    leaves = [leaf.requires_grad_(wanted) for leaf, wanted in zip((x, weight, bias), asked, strict=True)]
    torch.nn.functional.conv2d(x, weight, bias if asked[2] else None).backward(given["grad"])
    return leaves[GRADIENTS.index(what)].grad  # type: ignore[return-value]


def computed(kernel: Product, what: str, given: dict[str, Tensor]) -> Tensor:
    arguments = [given[name] for name in single_positions._GIVEN[what]]
    result = torch.full(kernel.sizes.of(single_positions._RESULT[what]), 7.0)
    kernel(*arguments, out=result)
    return result


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    return torch.equal(actual.view(torch.int32), expected.view(torch.int32))


ASKED = [("forward", ALONE), ("biased", ALONE)]
ASKED += [(what, (True, True, True)) for what in GRADIENTS] + [("weight", (False, True, False))]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("what", "asked"), ASKED)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_agrees_has_the_bits_of_eager(sizes: Sizes, what: str, asked: Mask, count: int) -> None:
    torch.manual_seed(0)
    with threads(count):
        kernel = agreeing(what, sizes, asked)
        if kernel is None:
            return  # called then: which these are is another test
        for scale in (1.0, 1e-22):
            given = operands(sizes, scale)
            assert same_bits(computed(kernel, what, given), by_autograd(what, given, asked))


@needs_avx512
@pytest.mark.parametrize(("what", "asked"), ASKED)
@pytest.mark.parametrize("sizes", [Sizes(2, 152, 38), Sizes(2, 672, 168), Sizes(8, 56, 6)], ids=str)
def test_usual_sizes_agree_for_two_threads(sizes: Sizes, what: str, asked: Mask) -> None:
    with threads(2):
        assert agreeing(what, sizes, asked) is not None


def test_orders_of_additions_are_told_apart() -> None:
    """In chains or rounded, at once or in two parts: at most one of them is the operator's."""
    sizes, asked = Sizes(8, 6, 4), (False, True, False)
    orders = [
        Product(Way(function, parts), "weight", sizes, asked)
        for function in ("single_weight_chain", "single_weight_sums")
        for parts in (1, 2)
    ]
    assert len(single_positions._that_agree(orders, "weight", sizes, asked)) <= 1


@contextmanager
def reduced_precision() -> Iterator[None]:
    torch._C._set_fp32_precision_setter("mkldnn", "conv", "bf16")
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter("mkldnn", "conv", "none")


OTHER_SETTINGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "threads": lambda: threads(2),
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "reduced precision": reduced_precision,
}


@pytest.mark.parametrize("name", OTHER_SETTINGS)
def test_under_other_settings_it_is_the_operator(name: str) -> None:
    """Kernels that add up otherwise than the operator among them, so that it shows which of both ran."""
    torch.manual_seed(0)
    sizes = Sizes(8, 40, 24)
    given = operands(sizes)
    with threads(1):
        kernels = [
            Product(Way("single_weight_chain", parts), "weight", sizes, (True, True, True)) for parts in (1, 2, 3)
        ]
        with OTHER_SETTINGS[name]():
            expected = by_autograd("weight", given, (True, True, True))
            assert all(same_bits(computed(kernel, "weight", given), expected) for kernel in kernels)


@pytest.mark.parametrize("count", [1, 2])
def test_every_kernel_is_right_and_stays_within_its_tensors(count: int) -> None:
    """Random sizes, beside double precision; tensors end, or begin, where memory must not be touched. In a process of
    its own, which a kernel that goes astray ends."""
    program = Path(__file__).with_name("guarded_single_positions.py")
    finished = subprocess.run([sys.executable, str(program), str(count)], capture_output=True, text=True, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert "products were right" in finished.stdout
