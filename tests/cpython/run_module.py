"""One module of CPython's own test-suite, in a process of its own: each test method is called through stator.compile
(or as it is), and what came of it is written down line by line, so that a crash loses nothing. Not a test itself.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import inspect
import json
import os
import sys
import unittest
from collections.abc import Iterator
from typing import Any, TextIO


def use_tests_of(folder: str | None) -> None:
    """Take the package `test` from this folder (CPython's Lib/) where the interpreter's own has no tests."""
    if not folder:
        return
    sys.path.append(folder)
    package = importlib.import_module("test")
    package.__path__ = [os.path.join(folder, "test"), *package.__path__]


class Outcomes(unittest.TestResult):
    """Writes one JSON line when a test starts and one when it ends."""

    def __init__(self, output: TextIO, seconds: float) -> None:
        super().__init__()
        self.output, self.seconds = output, seconds
        self.outcome = "passed"
        self.detail = ""

    def write(self, **record: Any) -> None:
        self.output.write(json.dumps(record) + "\n")
        self.output.flush()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.outcome, self.detail = "passed", ""
        self.write(start=test.id())
        faulthandler.dump_traceback_later(self.seconds, exit=True, file=self.output)

    def stopTest(self, test: unittest.TestCase) -> None:
        faulthandler.cancel_dump_traceback_later()
        self.write(test=test.id(), outcome=self.outcome, detail=self.detail)
        super().stopTest(test)

    def _failed(self, outcome: str, error: Any) -> None:
        if self.outcome == "passed":
            self.outcome = outcome
            self.detail = f"{error[0].__name__}: {error[1]}"[:2000] if error else ""

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._failed("error", err)
        if os.environ.get("STATOR_CPYTHON_TRACEBACKS"):
            print(self._exc_info_to_string(err, test), file=sys.__stderr__)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._failed("failed", err)
        if os.environ.get("STATOR_CPYTHON_TRACEBACKS"):
            print(self._exc_info_to_string(err, test), file=sys.__stderr__)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._failed("failed" if issubclass(err[0], test.failureException) else "error", err)
            self.detail = f"{subtest._subDescription()}: {self.detail}"  # type: ignore[attr-defined]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.outcome = "skipped"

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.outcome = "expected failure"

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.outcome = "unexpected success"


def compile_test_methods(report: Outcomes) -> None:
    """From now on unittest calls each test method through stator.compile(method, backend="eager")."""
    import stator
    from stator.base import logs

    def note(key: str, message: str, *, stacklevel: int = 3) -> None:
        # not given as a warning: many tests collect the warnings that their own code gives
        if key not in logs._warned:
            logs._warned.add(key)
            report.write(warning=message[:2000])

    logs.warn_once = note
    plain = unittest.TestCase._callTestMethod  # type: ignore[attr-defined]

    def call(case: unittest.TestCase, method: Any) -> None:
        plain(case, method if inspect.iscoroutinefunction(method) else stator.compile(method, backend="eager"))

    unittest.TestCase._callTestMethod = call  # type: ignore[attr-defined]


def tests_of(suite: Any) -> Iterator[unittest.TestCase]:
    for member in suite:
        if isinstance(member, unittest.TestSuite):
            yield from tests_of(member)
        else:
            yield member


def chosen(suite: unittest.TestSuite, done: set[str], wanted: list[str]) -> unittest.TestSuite:
    """The suite with fixtures in order, without what has been run and, if names are given, without the rest."""
    made = unittest.TestSuite()
    for test in tests_of(suite):
        name = test.id()
        if name not in done and (not wanted or any(part in name for part in wanted)):
            made.addTest(test)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--output", default="/dev/stdout")
    parser.add_argument("--done", help="a file with one name of a test a line, which is not run again")
    parser.add_argument("--seconds", type=float, default=120, help="for one test")
    parser.add_argument("--only", action="append", default=[], help="part of the name of the tests to run")
    options = parser.parse_args()
    use_tests_of(os.environ.get("CPYTHON_LIB"))
    import torch  # in both ways of running, so that they differ in nothing else

    torch.set_num_threads(1)
    done = set()
    if options.done:
        with open(options.done) as lines:
            done = {line.strip() for line in lines}
    with open(options.output, "a") as output:
        report = Outcomes(output, options.seconds)
        module = importlib.import_module(options.module)
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        if options.compiled:
            compile_test_methods(report)
        gc.collect()
        gc.freeze()  # collections that tests ask for need not look at all of torch
        chosen(suite, done, options.only).run(report)
        counts = {}
        if options.compiled:
            from stator.base import counters

            counts = dict(counters.counts)
        report.write(finished=True, counts=counts)


if __name__ == "__main__":
    main()
