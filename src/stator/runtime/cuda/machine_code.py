"""Variants of printed Triton kernels to machine code: kept in the process and on disk, the rest compiled in parallel.

A process that finds all of its kernels on disk never imports Triton and starts no helper.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from stator.base import counters, dumps, logs
from stator.base.errors import CompileError, MissingToolchain
from stator.base.locks import fork_safe_lock
from stator.runtime.build import current_cache
from stator.runtime.kernel_cache import KernelCache
from stator.runtime.toolchain import digest

from . import compile_service
from .compile_service import Job

_FORMAT = "cuda-1"  # change it with the stored format, or with how kernels are compiled
# Multiplications and additions round as in eager's operators and in C++ kernels; checks of indices are compiled, which
# Triton takes for debugging; integers wrap around
COMPILER_OPTIONS = {"enable_fp_fusion": False, "debug": True, "sanitize_overflow": False}


@dataclass(frozen=True, slots=True)
class Variant:
    """What is compiled at once: a kernel of a printed module, for one kind of calls on one kind of device.

    index: the type of indices and size arguments, "int32" or "int64". aligned: whether all addresses are multiples of
        16 bytes. capability: of the device, 90 for 9.0.
    """

    symbol: str
    source: str
    index: str
    aligned: bool
    capability: int


@dataclass(frozen=True, slots=True)
class MachineCode:
    """symbol: of the kernel in `cubin`. shared: bytes of dynamic shared memory. threads: of one program."""

    symbol: str
    shared: int
    threads: int
    cubin: bytes


_lock = fork_safe_lock()
_known: dict[Variant, MachineCode] = {}
_started: dict[Variant, Job] = {}


def forget_compiled() -> None:
    """Forget all machine code, so that every kernel is looked up on disk again (tests)."""
    with _lock:
        _known.clear()
        _started.clear()


@functools.cache
def triton_version() -> str:
    """Return the version of the installed Triton, without importing it. Raises MissingToolchain if there is none."""
    for name in ("triton", "pytorch-triton"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    raise MissingToolchain("kernels for GPUs need Triton (pip install triton)")


def _key(variant: Variant) -> str:
    return digest(json.dumps([_FORMAT, triton_version(), COMPILER_OPTIONS, asdict(variant)]))


def prepare(program: str) -> None:
    """Start importing Triton in the helper process, unless `program` was seen before: its kernels are on disk then.

    program: a text that identifies what is about to be compiled. Returns at once. A helper that cannot be started is
    an error of the first kernel that needs it.
    """
    seen = current_cache().notes / f"gpu-{digest(program)}"
    if not seen.exists():
        with contextlib.suppress(OSError):  # in a read-only folder every process starts the helper
            seen.touch(mode=0o600)
        with contextlib.suppress(CompileError):
            compile_service.start()


def start_compiling(variant: Variant) -> None:
    """Let the helper compile a variant that will be wanted, unless it is known or on disk. Returns at once."""
    with _lock:
        if variant not in _known and variant not in _started and not _find(variant, current_cache()):
            _started[variant] = compile_service.submit({**asdict(variant), "options": COMPILER_OPTIONS})


def compile_variants(variants: Iterable[Variant]) -> dict[Variant, MachineCode]:
    """Return the machine code of each variant. Raises CompileError for one that does not compile."""
    wanted = list(dict.fromkeys(variants))
    with _lock:
        for variant in wanted:
            start_compiling(variant)
        started = {variant: _started.pop(variant) for variant in wanted if variant in _started}
        counters.count("kernels.wanted", len(wanted))
        counters.count("kernels.compiled", len(started))
        if started:
            with counters.timed("compile_kernels"):
                compile_service.finish(list(started.values()))
                _keep(started)
        return {variant: _known[variant] for variant in wanted}


def _find(variant: Variant, cache: KernelCache) -> bool:
    data = cache.find_data(_key(variant))
    if data is not None:
        _known[variant] = _parse(data)[0]
    return data is not None


def _parse(data: bytes) -> tuple[Any, str]:
    """Return machine code, or the message of a failure."""
    head, _, cubin = data.partition(b"\n")
    fields = json.loads(head)
    return (None, fields["error"]) if "error" in fields else (MachineCode(**fields, cubin=cubin), "")


def _keep(finished: Mapping[Variant, Job]) -> None:
    """Keep machine code in this process and on disk. Raises CompileError for a kernel that was rejected."""
    cache = current_cache()
    rejected: dict[Variant, str] = {}
    stored: list[tuple[Variant, bytes]] = []
    for variant, job in finished.items():
        assert job.result is not None
        code, error = _parse(job.result)
        if code is None:
            rejected[variant] = error
        else:
            _known[variant] = code
            stored.append((variant, job.result))
    try:
        for variant, data in stored:
            cache.store_data(_key(variant), data)
        cache.trim_at_times()
    except OSError as problem:
        logs.warn_once("cache:cuda", f"stator cannot keep compiled kernels in {cache.folder}: {problem}")
    for variant, error in rejected.items():
        _reject(variant, error)


def _reject(variant: Variant, error: str) -> NoReturn:
    comment = "\n".join(f"# {line}" for line in error.splitlines())
    dumps.write("60_rejected.py", f"{variant.source}\n{comment}\n")
    raise CompileError(
        "runtime",
        f"Triton rejected generated code ({variant.symbol}): {error}",
        hint="this is a defect of stator; STATOR_DUMP=folder keeps the source",
    )
