"""The outcomes of a long run: written as tests end, so that a stopped run goes on where it stopped, and compared with
kept numbers, so that no later run passes by testing less.

--outcomes=FILE: each test's outcome, one a line. A run of the same source does not repeat what has passed there.
--kept=FILE: how many tests passed and were skipped in each file of tests. A whole run with fewer passed tests in a file
    fails. Without FILE, or with --keep, a whole run in which no test failed writes it.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

_ROOT = Path(__file__).parent.parent
_SETTLED = ("passed", "skipped")


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="write outcomes here, and go on where a stopped run stopped")
    parser.addoption("--kept", type=Path, help="compare the number of passed tests in each file with those kept here")
    parser.addoption("--keep", action="store_true", help="keep the numbers of this run")


def register(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None:
        given = getattr(config, "workerinput", None)  # of a process of pytest-xdist
        settled = _read(path) if given is None else given["settled"]
        config.pluginmanager.register(_Run(config, path, settled, writes=given is None), "kept outcomes")


class _Run:
    def __init__(self, config: pytest.Config, path: Path, settled: dict[str, str], writes: bool) -> None:
        self.config, self.path, self.settled, self.writes = config, path, settled, writes
        self.found: dict[str, str] = {}
        self.worse: list[str] = []
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [{"source": source_digest()}, *({"test": test, "outcome": one} for test, one in settled.items())]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            self.file = path.open("a")

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["settled"] = self.settled

    @pytest.hookimpl(trylast=True)  # behind the choice by marks
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self.settled]
        if done:
            config.hook.pytest_deselected(items=done)
            items[:] = [item for item in items if item.nodeid not in self.settled]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self.writes or self.found.get(report.nodeid) == "failed":
            return
        if report.outcome == "passed" and report.when != "teardown":  # its end may fail
            return
        outcome = self.found.setdefault(report.nodeid, report.outcome)
        if report.outcome == "failed":
            outcome = self.found[report.nodeid] = "failed"
        if report.when == "teardown" or outcome == "failed":
            self.file.write(json.dumps({"test": report.nodeid, "outcome": outcome}) + "\n")
            self.file.flush()

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self.writes:
            return
        self.file.close()
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.settled:
            session.exitstatus = exitstatus = pytest.ExitCode.OK
        kept, option = self.config.getoption("--kept"), self.config.option
        whole = not option.keyword and not option.maxfail and self.config.args_source.name != "ARGS"
        if kept is None or not whole or exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return
        now = by_file({**self.settled, **self.found})
        if kept.exists():
            self.worse = worse_files(json.loads(kept.read_text()), now)
        if exitstatus == pytest.ExitCode.OK and (option.keep or not kept.exists()):
            kept.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
        elif self.worse:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.writes and self.settled:
            terminalreporter.write_line(f"{len(self.settled)} tests had passed or been skipped before, by {self.path}")
        for line in self.worse:
            terminalreporter.write_line(f"fewer tests passed than kept: {line}", red=True)


def by_file(outcomes: dict[str, str]) -> dict[str, dict[str, int]]:
    """For each file of tests the number of each outcome."""
    found: dict[str, Counter[str]] = {}
    for test, outcome in outcomes.items():
        found.setdefault(test.partition("::")[0], Counter())[outcome] += 1
    return {name: dict(sorted(counts.items())) for name, counts in sorted(found.items())}


def worse_files(kept: dict[str, dict[str, int]], now: dict[str, dict[str, int]]) -> list[str]:
    """The files of which fewer tests pass now, with both numbers."""
    pairs = [(name, counts.get("passed", 0), now.get(name, {}).get("passed", 0)) for name, counts in kept.items()]
    return [f"{name}: {after} of {before}" for name, before, after in pairs if after < before]


def source_digest() -> str:
    """A name for the source, the tests and the versions below."""
    digest = hashlib.sha256(f"{torch.__version__} {platform.python_version()}".encode())
    for folder in ("src", "tests", "benchmarks"):
        for path in sorted((_ROOT / folder).rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(str(path.relative_to(_ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> dict[str, str]:
    """The tests that need not run again; none if the outcomes are of another source."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    if not lines or lines[0].get("source") != source_digest():
        return {}
    outcomes = {line["test"]: line["outcome"] for line in lines[1:]}
    return {test: outcome for test, outcome in outcomes.items() if outcome in _SETTLED}
