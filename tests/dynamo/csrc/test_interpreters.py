"""The C extension and what stands directly on it work under every supported interpreter that this machine has.

Each interpreter builds the extension into a folder of its own and needs neither torch nor pytest.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[2] / "src"
FILES = sorted(HERE.glob("test_native_*.py"))


def find_interpreter(version: str) -> str | None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    candidates = [shutil.which(f"python{version}")]
    candidates += sorted(map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")))
    for candidate in filter(None, candidates):
        try:
            asked = subprocess.run(
                [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
            )
        except OSError:
            continue
        if asked.stdout.strip() == version:
            return candidate
    return None


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_the_native_tests_pass_under(version):
    interpreter = find_interpreter(version)
    if interpreter is None or shutil.which("gcc") is None:
        pytest.skip(f"no Python {version} or no gcc here")
    command = [interpreter, "-I", str(HERE / "interpreter_run.py"), str(SOURCE), *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
