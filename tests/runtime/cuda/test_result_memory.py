"""How the use of results is told, where the first call of a process begins."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
def test_calibration_does_not_depend_on_the_mode_of_the_first_call(mode: str) -> None:
    program = f"""
import torch
with torch.{mode}():
    from stator.runtime.cuda import result_memory
assert result_memory.USES_ARE_KNOWN
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
