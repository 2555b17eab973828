"""Without Triton or without a CUDA driver, programs run eagerly, and one warning says so."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator

import pytest
import torch

import stator
from stator import pipeline
from stator.base import logs
from stator.base.errors import MissingToolchain
from stator.inductor.program.steps import KernelSource
from stator.runtime import cuda
from stator.runtime.cuda import driver, machine_code


@pytest.fixture(autouse=True)
def fresh_warnings() -> Iterator[None]:
    logs.forget_warnings()
    machine_code.triton_version.cache_clear()
    yield
    logs.forget_warnings()
    machine_code.triton_version.cache_clear()


def without_triton(sources: list[KernelSource], device: torch.device) -> None:
    machine_code.triton_version()


def without_driver(sources: list[KernelSource], device: torch.device) -> None:
    driver.open_driver("/nowhere/libcuda.so.1")


def one(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def two(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.exp() + 1, -1)


@pytest.mark.parametrize(("load", "said"), [(without_triton, "Triton"), (without_driver, "CUDA driver")])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_one_warning_then_eager(monkeypatch: pytest.MonkeyPatch, load: object, said: str, training: bool) -> None:
    def nothing_installed(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(machine_code.importlib.metadata, "version", nothing_installed)
    monkeypatch.setitem(pipeline.LANGUAGES, "cpu", "triton")
    monkeypatch.setattr(cuda, "load_kernels", load)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for function in (one, two, one):
            x = torch.randn(4, 8, requires_grad=training)
            torch.testing.assert_close(stator.compile(function)(x), function(x))
    (warning,) = caught
    assert "run eagerly" in str(warning.message) and said in str(warning.message)


def test_a_missing_driver_is_told_as_what_the_machine_lacks() -> None:
    with pytest.raises(MissingToolchain, match="CUDA driver"):
        driver.open_driver("/nowhere/libcuda.so.1")
