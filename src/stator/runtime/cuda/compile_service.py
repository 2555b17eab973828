"""Compiles Triton kernels in a helper process (zygote.py), so that this one never imports Triton.

The helper is one per process, started early by `prepare` or with the first job. Nothing here keeps what was compiled.
"""

from __future__ import annotations

import atexit
import contextlib
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


class Job:
    """A kernel for the helper to compile, and what it answered, see zygote.py: a line of JSON with `error`, or that of
    a kernel and its cubin."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self.result: bytes | None = None


class _Ended(Exception):
    """The helper ended before it had answered. The message is what it wrote to its standard error."""


class _Service:
    """The helper process, and the pipes to it. Neither side waits for the other one to read."""

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
        self.to_helper: int = self.process.stdin.fileno()  # type: ignore[union-attr]
        self.from_helper: int = self.process.stdout.fileno()  # type: ignore[union-attr]
        os.set_blocking(self.to_helper, False)
        self.unsent, self.received = bytearray(), bytearray()
        self.sent = 0
        self.jobs: dict[int, Job] = {}  # without result, by number

    def send(self, job: Job) -> None:
        """Hand over a job, as far as the helper reads. `receive` hands over the rest."""
        data = json.dumps(job.description).encode()
        self.unsent += _LENGTH.pack(len(data)) + data
        self.jobs[self.sent] = job
        self.sent += 1
        with contextlib.suppress(OSError):  # `receive` reports the end of the helper
            self._write()

    def receive(self) -> None:
        """Wait for at least one result. Raises _Ended, and CompileError after a long time without results."""
        waiting, deadline = len(self.jobs), time.monotonic() + TIMEOUT_SECONDS
        try:
            while len(self.jobs) == waiting:
                writes = [self.to_helper] if self.unsent else []
                seconds = max(0.0, deadline - time.monotonic())
                readable, writable, _ = select.select([self.from_helper], writes, [], seconds)
                if not readable and not writable:
                    message = f"Triton's compiler gave no result within {TIMEOUT_SECONDS} s"
                    raise CompileError("runtime", message)
                if writable:
                    self._write()
                if readable:
                    self._read()
        except (OSError, EOFError) as error:
            self.log.seek(0)
            raise _Ended(self.log.read()[-4000:].decode(errors="replace").strip()) from error

    def _write(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: os.write(self.to_helper, self.unsent)]

    def _read(self) -> None:
        part = os.read(self.from_helper, 1 << 20)
        if not part:
            raise EOFError
        self.received += part
        while len(self.received) >= _RESULT.size:
            number, length = _RESULT.unpack_from(self.received)
            end = _RESULT.size + length
            if len(self.received) < end:
                break
            self.jobs.pop(number).result = bytes(self.received[_RESULT.size : end])
            del self.received[:end]

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


def submit(description: dict[str, Any]) -> Job:
    """Hand over a kernel to compile, and return at once. Raises CompileError if the helper cannot be started."""
    job = Job(description)
    with _lock:
        _start().send(job)
    return job


def finish(jobs: Sequence[Job]) -> None:
    """Wait for the results of jobs. A helper that ends early gets one successor.

    Raises CompileError if the helper cannot be started, ends twice, or does not answer.
    """
    with _lock:
        for attempt in (1, 2):
            try:
                _finish(jobs)
                return
            except _Ended as error:
                stop()
                if attempt == 2:
                    raise CompileError("runtime", f"the process that compiles kernels ended early: {error}") from error
            except BaseException:  # a helper that gives no answer, or is interrupted, is not asked again
                stop()
                raise


def _finish(jobs: Sequence[Job]) -> None:
    if all(job.result is not None for job in jobs):
        return
    service = _start()
    sent = set(map(id, service.jobs.values()))
    for job in jobs:
        if job.result is None and id(job) not in sent:  # its helper ended, or is that of a parent process
            service.send(job)
    while any(job.result is None for job in jobs):
        service.receive()


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
