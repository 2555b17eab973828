"""CPython's own test-suite as a judge of capture: every test of its modules of the language is run as it is and through
stator.compile, and what passes without must pass with. The tests are those of the interpreter; none lives here.

    python tests/cpython/run_suite.py                      all modules, compared with the pass list of this version
    python tests/cpython/run_suite.py test_dict --update   one module, and write what was found into the pass list

In an environment with STATOR_KEEP_EMPTY_GRAPHS=1, what is captured replaces code without tensors, too: another list.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from run_module import use_tests_of

HERE = Path(__file__).parent
# code without operations on tensors runs as it is, or is replaced all the same: the stricter judge of capture
REPLACED = os.environ.get("STATOR_KEEP_EMPTY_GRAPHS", "0") not in ("", "0")
PASS_LIST = HERE / f"pass_list_{sys.version_info.major}.{sys.version_info.minor}{'_replaced' * REPLACED}.json"
GOOD = ("passed", "expected failure")

MODULES = HERE / "modules.txt"


@dataclass
class Run:
    """What one module's tests did, in one way of running them."""

    outcomes: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    lost: str = ""  # why the module could not be run at all

    @property
    def passes(self) -> int:
        return sum(outcome in GOOD for outcome in self.outcomes.values())


def missing_tests() -> str | None:
    """What keeps this interpreter from running its tests, or None."""
    if importlib.util.find_spec("test") is None or importlib.util.find_spec("test.test_generators") is None:
        return (
            f"the package `test` of {sys.executable} ({sys.version.split()[0]}) has no tests. Some distributions put "
            "them in a package of their own (libpython3.X-testsuite, python3-test); or give a folder that holds "
            "`test` of the same version, such as Lib/ of CPython's source: make test-cpython CPYTHON_LIB=folder"
        )
    return None


def run_module(name: str, compiled: bool, *, only: list[str], test_seconds: float, module_seconds: float) -> Run:
    """Run a module's tests in processes of their own: a new one behind every test that ends its process."""
    result = Run()
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder, "done")
        while True:
            output = Path(folder, "output")
            output.write_text("")
            done.write_text("\n".join(result.outcomes))
            command = [sys.executable, str(HERE / "run_module.py"), f"test.test_{name}", "--output", str(output)]
            command += ["--done", str(done), "--seconds", str(test_seconds)]
            command += ["--compiled"] * compiled + [f"--only={part}" for part in only]
            ended = _run_process(command, folder, module_seconds)
            before = len(result.outcomes)
            if _read(output, result, ended):
                return result
            if len(result.outcomes) == before:
                result.lost = ended
                return result


def _run_process(command: list[str], folder: str, seconds: float) -> str:
    errors = Path(folder, "errors")
    with errors.open("w") as stream:
        try:
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=folder,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "timeout"
    text = errors.read_text(errors="replace").strip().splitlines()
    last = f" ({text[-1][:300]})" if text else ""
    return f"crash: signal {-process.returncode}" if process.returncode < 0 else f"exit {process.returncode}{last}"


def _read(output: Path, result: Run, ended: str) -> bool:
    """Add what a process wrote; was it the end of the module?"""
    started = None
    for line in output.read_text().splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            if "Timeout" in line:
                ended = "timeout"
            continue  # the trace of a test that took too long
        if "start" in record:
            started = record["start"]
        elif "test" in record:
            started = None
            result.outcomes[record["test"]] = record["outcome"]
            result.details[record["test"]] = record["detail"]
        elif "warning" in record:
            result.warnings.append(record["warning"])
        else:
            result.counts = {
                key: result.counts.get(key, 0) + value
                for key, value in {**dict.fromkeys(result.counts, 0), **record["counts"]}.items()
            }
            return True
    if started is not None:
        result.outcomes[started] = ended.partition(":")[0].split(" ")[0]
        result.details[started] = ended
    return False


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The module's line of the table."""
    limits = {"only": options.only, "test_seconds": options.seconds, "module_seconds": options.module_seconds}
    plain = run_module(name, False, **limits)
    compiled = run_module(name, True, **limits)
    different = {
        test: f"{compiled.outcomes.get(test, 'not run')}: {compiled.details.get(test, compiled.lost)}"
        for test, outcome in plain.outcomes.items()
        if outcome in GOOD and compiled.outcomes.get(test, "not run") not in (*GOOD, "skipped")
    }
    return {
        "without": plain.passes,
        "with": compiled.passes,
        "different": different,
        "internal errors": sum("(an internal error)" in warning for warning in compiled.warnings),
        "warnings": compiled.warnings,
        "counts": compiled.counts,
    }


def show(name: str, found: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """Print one line, and what is new against the pass list. True when there is nothing worse."""
    counts = found["counts"]
    print(
        f"{name:24} {found['without']:5} without {found['with']:5} with, {len(found['different']):3} differ; frames: "
        f"{counts.get('dynamo.compiled_frames', 0)} captured, {counts.get('graph_breaks', 0)} breaks, "
        f"{counts.get('dynamo.failed_frames', 0)} eager ({found['internal errors']} by internal errors)",
        flush=True,
    )
    known = recorded.get("different", {})
    worse = {test: what for test, what in found["different"].items() if test not in known}
    for test, what in worse.items():
        print(f"    {test}: {what.splitlines()[0][:200] if what else ''}")
    return not worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help="such as test_dict; all of the list when none is given")
    parser.add_argument("--update", action="store_true", help="write what was found into the pass list")
    parser.add_argument("--only", action="append", default=[], help="part of the name of the tests to run")
    parser.add_argument("--details", help="a file for everything that was found, with warnings, as JSON")
    parser.add_argument("--seconds", type=float, default=120, help="for one test")
    parser.add_argument("--module-seconds", type=float, default=1200)
    options = parser.parse_args()
    use_tests_of(os.environ.get("CPYTHON_LIB"))
    missing = missing_tests()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    recorded = json.loads(PASS_LIST.read_text()) if PASS_LIST.exists() else {}
    names = [name.removeprefix("test_") for name in options.modules] or MODULES.read_text().split()
    good, details = True, {}
    for name in names:
        if importlib.util.find_spec(f"test.test_{name}") is None:
            print(f"{name:24} is not in this interpreter")
            continue
        found = details[name] = compare(name, options)
        good &= show(name, found, recorded.get(name, {}))
        if options.update:
            recorded[name] = {key: found[key] for key in ("without", "with", "different")}
            PASS_LIST.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
        if options.details:
            Path(options.details).write_text(json.dumps(details, indent=1))
    passes = [sum(found[key] for found in details.values()) for key in ("without", "with")]
    print(f"{len(details)} modules: {passes[0]} pass without, {passes[1]} with")
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
