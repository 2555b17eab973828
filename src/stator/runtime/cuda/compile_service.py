"""Compiles Triton kernels in a helper process (zygote.py), so that this one never imports Triton.

The helper is one per process, started early by `prepare` or with the first job. Nothing here keeps what was compiled.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stator.base.errors import CompileError
from stator.base.locks import fork_safe_lock

TIMEOUT_SECONDS = 600  # without any result
_LENGTH = struct.Struct("<Q")
_RESULT = struct.Struct("<QQ")
_PROGRAM = Path(__file__).with_name("zygote.py")

_lock = fork_safe_lock()
_service: _Service | None = None


class _Ended(Exception):
    """The helper ended before it had answered. The message is what it wrote to its standard error."""


class _Service:
    """The helper process, and the pipes to it."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        # -P: the folder of the program is no place to import from. A session of its own: the terminal's signals are
        # not for it, and its children can be ended with it.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), str(os.getpid())],
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            start_new_session=True,
            bufsize=0,
        )

    def compile(self, jobs: Sequence[dict[str, Any]]) -> list[bytes]:
        batch = json.dumps(jobs).encode()
        results: dict[int, bytes] = {}
        try:
            self._write(_LENGTH.pack(len(batch)) + batch)
            while len(results) < len(jobs):
                at, length = _RESULT.unpack(self._read(_RESULT.size))
                results[at] = self._read(length)
        except (OSError, EOFError) as error:
            self.log.seek(0)
            raise _Ended(self.log.read()[-4000:].decode(errors="replace").strip()) from error
        return [results[at] for at in range(len(jobs))]

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]  # type: ignore[union-attr]

    def _read(self, length: int) -> bytes:
        parts = b""
        descriptor = self.process.stdout.fileno()  # type: ignore[union-attr]
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(parts) < length:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise CompileError("runtime", f"Triton's compiler gave no result within {TIMEOUT_SECONDS} s")
            part = os.read(descriptor, length - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts

    def close(self, kill: bool = True) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            pipe.close()  # type: ignore[union-attr]
        if kill and self.process.poll() is None:  # not yet waited for, so that the number is still its own
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _start() -> _Service:
    global _service
    if _service is None or _service.process.poll() is not None:
        stop()
        try:
            _service = _Service()
        except OSError as error:
            raise CompileError("runtime", f"the process that compiles kernels cannot be started: {error}") from error
    return _service


def start() -> None:
    """Start the helper if it does not run, so that it has imported Triton when jobs come. Does not wait for it."""
    with _lock:
        _start()


def stop() -> None:
    """End the helper. The next job starts another one."""
    global _service
    with _lock:
        service, _service = _service, None
        if service is not None:
            service.close()


def compile_kernels(jobs: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return the result of each job, see zygote.py: a line of JSON with `error`, or that of a kernel and its cubin.

    Raises CompileError if the helper cannot be started, ends twice, or does not answer.
    """
    with _lock:
        for attempt in (1, 2):
            try:
                return _start().compile(jobs)
            except _Ended as error:
                stop()
                if attempt == 2:
                    raise CompileError("runtime", f"the process that compiles kernels ended early: {error}") from error
            except BaseException:  # results of this batch may still be on their way
                stop()
                raise
    raise AssertionError("not reached")


def _forget_in_child() -> None:
    """The helper belongs to the parent of the fork: the child closes its copies of the pipes, or the helper would not
    see the parent's end."""
    global _service
    service, _service = _service, None
    if service is not None:
        service.close(kill=False)
        service.process.returncode = 0  # nobody's child here


atexit.register(stop)
os.register_at_fork(after_in_child=_forget_in_child)
