"""Builds fake_blas.c, and reads what it has noted."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_driver import FakeDriver


class FakeBlas:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.shared_object = ctypes.CDLL(self.path)

    def get(self, name: str) -> int:
        return self._variable(name).value

    def set(self, name: str, value: int) -> None:
        self._variable(name).value = value

    def alignments(self) -> list[int]:
        return list((ctypes.c_uint32 * 4).in_dll(self.shared_object, "blas_alignments"))

    def _variable(self, name: str) -> ctypes.c_int | ctypes.c_uint64:
        wide = name in ("stream", "workspace", "wanted_workspace", "context")
        return (ctypes.c_uint64 if wide else ctypes.c_int).in_dll(self.shared_object, f"blas_{name}")


def build_blas(folder: Path, driver: FakeDriver) -> FakeBlas:
    """`driver`: tells the context of a call."""
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    assert compiler is not None
    path, source = folder / "libcublasLt.so.13", Path(__file__).with_name("fake_blas.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(path), str(source), driver.path]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs a C compiler with half floats")
    return FakeBlas(path)
