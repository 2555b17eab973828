"""Builds fake_driver.c, and reads what it has recorded."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Launch(NamedTuple):
    function: int
    grid: tuple[int, ...]
    threads: int
    shared: int
    stream: int
    context: int
    parameters: tuple[int, ...]


class FakeDriver:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.shared_object = ctypes.CDLL(self.path)

    def set(self, name: str, value: int) -> None:
        kind = ctypes.c_uint64 if name == "stream" else ctypes.c_int
        kind.in_dll(self.shared_object, f"fake_{name}").value = value

    def get(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.shared_object, f"fake_{name}").value

    def names(self) -> list[str]:
        names = (ctypes.c_char * 64 * 256).in_dll(self.shared_object, "fake_names")
        return [bytes(names[at]).rstrip(b"\0").decode() for at in range(self.get("module_count"))]

    def launches(self) -> list[Launch]:
        """The launches since the last look."""
        rows = (ctypes.c_uint64 * 24 * 256).in_dll(self.shared_object, "fake_launches")
        found, parameters = [], self.get("parameter_count")
        for row in rows[: self.get("launch_count")]:
            found.append(Launch(row[0], tuple(row[1:4]), *row[4:8], tuple(row[8 : 8 + parameters])))
        self.set("launch_count", 0)
        return found


def build(folder: Path) -> FakeDriver:
    compiler = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    path = folder / "libcuda.so.1"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return FakeDriver(path)
