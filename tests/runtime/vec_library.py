"""Builds functions over csrc/vec.h for each instruction set that this machine can run."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from stator.runtime import toolchain
from stator.runtime.toolchain import CSRC, cpu_features

TARGETS = {"native": None, "x86-64-v3": "avx2", "x86-64": "sse2"}


def build_library(source: str, target: str, folder: Path) -> ctypes.CDLL:
    need = TARGETS[target]
    if need and need not in cpu_features():
        pytest.skip(f"this processor has no {need}")
    (folder / "vec.cpp").write_text(source)
    command = ["g++", *toolchain.OPTIMIZE, f"-march={target}", *toolchain.LANGUAGE, "-I", str(CSRC)]
    subprocess.run([*command, str(folder / "vec.cpp"), "-shared", "-o", str(folder / "vec.so"), "-lm"], check=True)
    return ctypes.CDLL(str(folder / "vec.so"))
