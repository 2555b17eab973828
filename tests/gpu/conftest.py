"""Tests that need a GPU: marked `gpu`, skipped before their modules are imported where there is none.

Several processes share the GPU, each with its part of the memory. An assertion on the device ends all CUDA work of its
process: a process in that state ends after the test, and pytest-xdist starts another one. The end of a run lists
failures by cause; REPORT=file.json keeps that list.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.device import DEVICE, missing

HERE = Path(__file__).parent
SECONDS_OF_A_TEST = 150
# shared helpers that lie beside the tests of other folders
sys.path[:0] = [str(HERE.parent / "opinfo"), str(HERE.parent / "inductor")]
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?")
_broken: list[str] = []


class WithoutGpu(pytest.Module):
    """A module that is not imported."""

    def collect(self) -> Any:
        pytest.skip(missing(), allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module:
    made = (WithoutGpu if missing() else pytest.Module).from_parent(parent, path=module_path)
    made.add_marker("gpu")
    # a call that hangs in the driver never returns to Python's signal handlers: end the process
    made.add_marker(pytest.mark.timeout(SECONDS_OF_A_TEST, method="thread"))
    return made


@pytest.fixture(autouse=True, scope="session")
def a_part_of_the_memory() -> None:
    if DEVICE == "cuda":
        import torch

        torch.cuda.set_per_process_memory_fraction(0.92 / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


@pytest.fixture(autouse=True)
def alike() -> Iterator[None]:
    """Fresh compiled code, full precision of float32 products in eager and compiled code, and no memory of others."""
    import torch

    import stator

    stator.reset()
    torch.manual_seed(0)
    if DEVICE != "cuda":
        yield
        return
    torch._C._set_cudnn_allow_tf32(False)  # torch's own test helpers forbid the public switch
    yield
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except RuntimeError as error:
        _broken.append(str(error).splitlines()[0])
        pytest.fail(f"the CUDA context is broken: {_broken[0]}")


def pytest_runtest_logfinish(nodeid: str) -> None:
    if _broken:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(70)
        pytest.exit(f"{nodeid} broke the CUDA context", returncode=70)


# ---- failures by cause


def pytest_terminal_summary(terminalreporter: Any) -> None:
    failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
    failed = [report for report in failed if "tests/gpu/" in report.nodeid]
    if not failed:
        return
    causes: dict[str, list[tuple[str, str]]] = {}
    for report in failed:
        for line in _messages(report):
            causes.setdefault(_cause(line), []).append((report.nodeid, line))
    ordered = sorted(causes.items(), key=lambda item: -len(item[1]))
    terminalreporter.section("failures by cause")
    for cause, found in ordered:
        tests = list(dict.fromkeys(nodeid.rpartition("::")[2] for nodeid, _ in found))
        terminalreporter.write_line(f"{len(tests):4} {cause[:200]}")
        terminalreporter.write_line(f"       {', '.join(tests[:6])}{', ...' if len(tests) > 6 else ''}"[:280])
    if os.environ.get("REPORT"):
        counts = {kind: len(reports) for kind, reports in terminalreporter.stats.items() if kind}
        kept = [
            {"cause": cause, "tests": sorted({f"{test}: {line}" for test, line in found})} for cause, found in ordered
        ]
        Path(os.environ["REPORT"]).write_text(json.dumps({"counts": counts, "causes": kept}, indent=1) + "\n")


def _messages(report: Any) -> list[str]:
    """The lines that say what was wrong: those of a list of operators, or the first one of an error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line for line in text.removeprefix("AssertionError: ").splitlines() if line.strip()]
    of_operators = [line for line in lines if re.match(r"\S+ of \(", line)]
    return of_operators[:20] or lines[:1] or ["no message"]


def _cause(line: str) -> str:
    """The line without what differs from test to test: names of operators, arguments, numbers."""
    line = re.sub(r"^\S+ of \(.*\): (?=\S)", "", line)
    return _NUMBERS.sub("N", line)
