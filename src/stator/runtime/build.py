"""Kernel texts to addresses: loaded and cached kernels are reused, the rest are compiled in parallel.

toolchain.py chooses compiler and flags, kernel_cache.py stores binaries. Nothing here knows what a kernel computes.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stator.base import counters, dumps
from stator.base.errors import CompileError
from stator.base.locks import fork_safe_lock

from . import kernel_cache, toolchain
from .kernel_cache import KernelCache
from .precompiled_header import PrecompiledHeader, headers_digest
from .toolchain import Toolchain, digest

ABI = "1"  # of kernels, see kernel_abi.md
COMPILE_TIMEOUT_SECONDS = 600
# A compiler process costs about 35 ms before its first kernel, which no smaller unit is worth. A line takes 0.3 ms.
_SMALLEST_UNIT_LINES = 50
# Functions of headers that each unit compiles once if its kernels call them, by what is in the text of such kernels:
# they take as long as so many lines
_FUNCTION_LINES = {"multiply_rows<": 450, "multiply_by_rows": 200, "random_blocks ": 230, "change_patches(": 250}


class KernelText(Protocol):
    @property
    def symbol(self) -> str: ...
    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    symbol: str
    source: str
    key: str


class _Library:
    """A loaded unit. It is unloaded with the last address of its kernels: a process may map only so many files."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        # not at exit, when threads may still run kernels
        weakref.finalize(self, _close, self._functions._handle).atexit = False

    def address(self, symbol: str) -> KernelAddress | None:
        function = getattr(self._functions, symbol, None)
        value = None if function is None else ctypes.cast(function, ctypes.c_void_p).value
        return None if value is None else KernelAddress(value, self)


class KernelAddress(int):
    """Where a kernel is. The kernel stays loaded as long as this number, or a callable made from it, is alive."""

    _library: _Library

    def __new__(cls, value: int, library: _Library) -> KernelAddress:
        self = super().__new__(cls, value)
        self._library = library
        return self


_close = ctypes.CDLL(None).dlclose
_close.argtypes = [ctypes.c_void_p]

_lock = fork_safe_lock()
_by_kernel: weakref.WeakValueDictionary[str, _Library] = weakref.WeakValueDictionary()  # by key
_by_unit: weakref.WeakValueDictionary[str, _Library] = weakref.WeakValueDictionary()  # by name
_caches: dict[Path, KernelCache] = {}
_headers: dict[Path, PrecompiledHeader] = {}


def current_cache() -> KernelCache:
    """Return the cache in the folder that the environment names."""
    root = kernel_cache.default_root()
    with _lock:
        if root not in _caches:
            _caches[root] = kernel_cache.open_cache(root)
        return _caches[root]


def forget_loaded() -> None:
    """Forget all kernels, so that every kernel is looked up on disk again (tests, `reset`). What programs hold stays
    loaded."""
    with _lock:
        _by_kernel.clear()
        _by_unit.clear()
        _caches.clear()
        _headers.clear()


def build_kernels(sources: Sequence[KernelText], threads: int = 0) -> dict[str, KernelAddress]:
    """Return the addresses of the kernels by symbol. `threads`: the number of parallel compiler processes, 0 for one
    per core. Raises MissingToolchain without a working compiler, CompileError if a kernel does not compile."""
    if not sources:
        return {}
    with _lock:
        cache = current_cache()
        chain = toolchain.find_toolchain(cache.notes)
        wanted = _distinct(sources, chain)
        found = {kernel.key: address for kernel in wanted if (address := _find(kernel, cache)) is not None}
        missing = [kernel for kernel in wanted if kernel.key not in found]
        counters.count("kernels.wanted", len(wanted))
        counters.count("kernels.compiled", len(missing))
        if missing:
            with counters.timed("compile_kernels"):
                found |= _build(missing, chain, cache, threads)
        return {kernel.symbol: found[kernel.key] for kernel in wanted}


def _distinct(sources: Sequence[KernelText], chain: Toolchain) -> list[_Wanted]:
    salt = f"{ABI}\0{chain.key}\0{headers_digest()}\0"
    by_symbol: dict[str, str] = {}
    for kernel in sources:
        if by_symbol.setdefault(kernel.symbol, kernel.source) != kernel.source:
            raise CompileError("runtime", f"two different kernels are both called {kernel.symbol}")
    return [_Wanted(symbol, text, digest(f"{salt}{symbol}\0{text}")) for symbol, text in by_symbol.items()]


def _find(kernel: _Wanted, cache: KernelCache) -> KernelAddress | None:
    """The kernel's address if this process or the cache has the kernel."""
    library = _by_kernel.get(kernel.key)
    if library is None:
        unit = cache.find_unit(kernel.key)
        library = None if unit is None else _by_unit.get(unit) or _load_found(unit, cache)
    return None if library is None else _register(kernel, library)


def _load_found(unit: str, cache: KernelCache) -> _Library | None:
    path = cache.verified_path(unit)
    if path is None:
        return None
    try:
        library = _by_unit[unit] = _Library(path)
    except OSError:
        return None  # intact but not loadable, e.g. because a library is gone: build it again
    return library


def _register(kernel: _Wanted, library: _Library) -> KernelAddress | None:
    address = library.address(kernel.symbol)
    if address is not None:
        _by_kernel[kernel.key] = library
    return address


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def partition(kernels: list[_Wanted], threads: int) -> list[list[_Wanted]]:
    """Divide kernels into at most `threads` units: longest first, each to where all units take the least time. The time
    of the longest counts, and twice the mean, for cores have other work too: so kernels that call one function of a
    header lie in one unit, unless others would wait for it."""
    lines = {kernel.key: kernel.source.count("\n") for kernel in kernels}
    called = {kernel.key: {name for name in _FUNCTION_LINES if name in kernel.source} for kernel in kernels}
    left = sum(lines.values())
    count = max(1, min(threads, len(kernels), left // _SMALLEST_UNIT_LINES))
    units: list[list[_Wanted]] = [[] for _ in range(count)]
    lengths, functions = [0] * count, [set[str]() for _ in units]

    def with_kernel(kernel: _Wanted, unit: int) -> int:
        new = called[kernel.key] - functions[unit]
        return lengths[unit] + lines[kernel.key] + sum(_FUNCTION_LINES[name] for name in new)

    def cost(kernel: _Wanted, unit: int) -> tuple[float, int]:
        length = with_kernel(kernel, unit)
        mean = (sum(lengths) - lengths[unit] + length + left) / count
        return max(mean, length, *lengths) + 2 * mean, length

    for kernel in sorted(kernels, key=lambda kernel: -with_kernel(kernel, 0)):
        left -= lines[kernel.key]
        best = min(range(count), key=lambda unit: cost(kernel, unit))
        lengths[best] = with_kernel(kernel, best)
        functions[best] |= called[kernel.key]
        units[best].append(kernel)
    return [unit for unit in units if unit]


def unit_text(kernels: Sequence[KernelText]) -> str:
    """Join kernels to one translation unit. The header is included once; another include of it is harmless."""
    header = '#include "vec.h"\n' if (toolchain.CSRC / "vec.h").exists() else ""
    return header + "\n".join(kernel.source for kernel in kernels) + "\n"


def _build(missing: list[_Wanted], chain: Toolchain, cache: KernelCache, threads: int) -> dict[str, KernelAddress]:
    """Build kernels. Returns their addresses by key."""
    try:
        return _build_in(missing, chain, cache, threads)
    except OSError as error:  # the folder became read-only, the disk is full, or programs there cannot be loaded
        if cache.is_temporary:
            raise kernel_cache.unusable(f"kernels cannot be built in {cache.folder}", error) from error
        root = kernel_cache.default_root()
        _caches[root] = kernel_cache.temporary_cache(root, error)
        return _build(missing, chain, _caches[root], threads)


def _build_in(missing: list[_Wanted], chain: Toolchain, cache: KernelCache, threads: int) -> dict[str, KernelAddress]:
    units = partition(missing, threads or _cores())
    folder, built = cache.work_folder(), {}
    try:
        outputs = _compile_units(units, chain, cache, folder)
        for unit, output in zip(units, outputs, strict=True):
            library = _load(cache.store(output, [kernel.key for kernel in unit]), chain, cache, folder)
            for kernel in unit:
                address = _register(kernel, library)
                if address is None:
                    raise CompileError(
                        "runtime", f"the generated source does not define its entry point {kernel.symbol}"
                    )
                built[kernel.key] = address
        cache.trim_at_times()
        return built
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _load(path: Path, chain: Toolchain, cache: KernelCache, folder: Path) -> _Library:
    try:
        library = _Library(path)
    except OSError as error:
        path.unlink(missing_ok=True)
        if "failed to map segment" in str(error):  # the file system or a security policy forbids programs there
            raise
        toolchain.diagnose(chain, folder, cache.notes)  # raises MissingToolchain if no program can be loaded
        raise CompileError("runtime", f"a compiled kernel cannot be loaded: {error}") from error
    _by_unit[path.stem] = library
    return library


def _compile_units(units: list[list[_Wanted]], chain: Toolchain, cache: KernelCache, folder: Path) -> list[Path]:
    """Run one compiler per unit, all at once."""
    outputs, running, failures = [], [], []
    in_advance = _headers.setdefault(cache.folder, PrecompiledHeader(cache))
    header = in_advance.folder(chain, len(units))
    for number, unit in enumerate(units):
        source, output = folder / f"unit{number}.cpp", folder / f"unit{number}.so"
        source.write_text(unit_text(unit))
        outputs.append(output)
        running.append((unit, source, _start(chain, source, output, header)))
    for unit, source, process in running:
        try:
            _, errors = process.communicate(timeout=COMPILE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            errors = f"the compiler did not finish within {COMPILE_TIMEOUT_SECONDS} s"
        if process.returncode != 0:
            failures.append((unit, source, errors))
    if not failures:
        return outputs
    toolchain.raise_if_disk_is_full(failures[0][2])
    if header is not None:  # damaged, or not readable at the address that it was made for
        in_advance.give_up(header)
        return _compile_units(units, chain, cache, folder)
    working = toolchain.diagnose(chain, folder, cache.notes)
    if working != chain:
        return _compile_units(units, working, cache, folder)
    unit, source, errors = failures[0]
    raise CompileError(
        "runtime",
        f"the C++ compiler rejected generated code ({', '.join(kernel.symbol for kernel in unit)[:200]}): "
        f"{_first_errors(errors)}",
        hint=f"this is a defect of stator; the source is kept in {_keep(source, errors, cache)}",
    )


def _start(chain: Toolchain, source: Path, output: Path, header: Path | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        chain.build_command(str(source), str(output), header),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=toolchain.compiler_environment(output.parent),
    )


def _first_errors(errors: str) -> str:
    lines = [line for line in errors.splitlines() if re.search(r"\b(error|fatal)\b", line)]
    return "; ".join(lines[:3]) or errors.strip()[:500] or "no message"


def _keep(source: Path, errors: str, cache: KernelCache) -> Path:
    """Save a failed kernel for inspection: in the dump, and in one file per cache."""
    text = source.read_text() + "\n/*\n" + errors.replace("*/", "* /") + "\n*/\n"
    dumps.write("60_rejected.cpp", text)
    kept = cache.folder / "rejected.cpp"
    kept.write_text(text)
    return kept
