"""Finds the other Python versions of this machine, to run scripts that need no torch under them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

OTHER_VERSIONS = ("3.11", "3.12", "3.13", "3.14")


@cache
def find(version: str) -> str | None:
    """Path of an interpreter of exactly this version, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True) if pyenv.is_dir() else []
    for candidate in [*map(str, installed), shutil.which(f"python{version}")]:
        if candidate and _version_of(candidate) == version:
            return candidate
    return None


def _version_of(interpreter: str) -> str | None:
    command = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def run_script(version: str, script: Path, *arguments: str) -> str:
    """What the script prints under this version. Skips the test when the version is absent."""
    interpreter = find(version)
    if interpreter is None:
        pytest.skip(f"no Python {version} here")
    command = [interpreter, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
