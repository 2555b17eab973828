"""A few modules of CPython's own test-suite through stator.compile, where the interpreter has its tests. `make
test-cpython` runs them all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("run_suite.py")


@pytest.mark.skipif(importlib.util.find_spec("test.test_binop") is None, reason="this interpreter has no tests")
@pytest.mark.parametrize("module", ["binop", "with"])
def test_passes_as_many_tests_as_without(module, tmp_path):
    command = [sys.executable, str(SUITE), module, "--seconds", "60"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
