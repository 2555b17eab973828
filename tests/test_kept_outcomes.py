"""A stopped run goes on where it stopped, and a run that tests less than the kept one fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.kept_outcomes import by_file, worse_files

_ROOT = Path(__file__).parent.parent
_CONFTEST = """
from tests import kept_outcomes
pytest_addoption, pytest_configure = kept_outcomes.add_options, kept_outcomes.register
"""
_TESTS = """
import pathlib
import pytest

def test_one():
    with open("ran", "a") as file:
        file.write("one ")

def test_two():
    assert pathlib.Path("good").exists()

def test_three():
    pytest.skip("never")
"""


def run(folder: Path) -> tuple[int, list[str]]:
    """The exit status, and how often the first test has run."""
    arguments = ["--outcomes", "outcomes.jsonl", "--kept", "kept.json", "-p", "no:cacheprovider", "-q"]
    command = [sys.executable, "-m", "pytest", *arguments]
    found = subprocess.run(command, cwd=folder, env={"PYTHONPATH": f"{_ROOT}:{_ROOT}/src"}, capture_output=True)
    return found.returncode, (folder / "ran").read_text().split()


def test_a_run_goes_on_and_is_compared(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_some.py").write_text(_TESTS)
    assert run(tmp_path) == (1, ["one"])
    assert not (tmp_path / "kept.json").exists()
    (tmp_path / "good").touch()
    assert run(tmp_path) == (0, ["one"])  # the failed test alone
    assert json.loads((tmp_path / "kept.json").read_text()) == {"test_some.py": {"passed": 2, "skipped": 1}}
    assert run(tmp_path) == (0, ["one"])
    (tmp_path / "outcomes.jsonl").unlink()
    (tmp_path / "test_some.py").write_text(_TESTS.replace("def test_two", "def untested"))
    assert run(tmp_path) == (1, ["one", "one"])


def test_numbers_of_a_file() -> None:
    outcomes = {"a.py::one": "passed", "a.py::two[1]": "skipped", "b.py::three": "passed", "a.py::four": "passed"}
    now = by_file(outcomes)
    assert now == {"a.py": {"passed": 2, "skipped": 1}, "b.py": {"passed": 1}}
    assert worse_files({"a.py": {"passed": 2}, "c.py": {"passed": 3}, "d.py": {"skipped": 1}}, now) == ["c.py: 0 of 3"]
