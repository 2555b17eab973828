"""The C++ compiler, its flags for this processor, and the OpenMP runtime that torch has loaded.

Nothing here knows kernels or their cache. The compiler is tested only after a build has failed (`diagnose`).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from stator.base import logs
from stator.base.errors import MissingToolchain
from stator.base.signals import raised_by_signal_handler

CSRC = Path(__file__).resolve().parent / "csrc"

# Kernels keep exact IEEE semantics (no -ffast-math), except errno and trapping, which torch drops as well. They use
# explicit vectors, so -O1 gives code as fast as -O3 in half the time. -fexpensive-optimizations lets GCC clear the
# upper halves of vector registers before calls and returns: else code without AVX that runs next, such as libm's, takes
# up to a hundred times as long. -fcaller-saves keeps values in registers, and not on the stack all along, where a loop
# has a call that it hardly ever makes, as for indices out of range.
OPTIMIZE = (
    *("-O1", "-fexpensive-optimizations", "-fcaller-saves"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
# One region per function for GCC's register allocator; Clang has no such option. A region per loop, the default, takes
# a tenth longer to compile and spills no less in loops over vectors.
GCC_ALLOCATION = "-fira-region=one"
LANGUAGE = (
    *("-std=gnu++17", "-fPIC", "-w"),
    *("-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables"),
)
# Tried in this order when a build fails. Clang's -fopenmp needs Clang's own runtime, which torch may not have loaded;
# with -fopenmp=libgomp, or without a flag, it ignores the pragmas and kernels use one core.
NATIVE_FLAGS = (("-march=native",), ("-mcpu=native",), ())
OPENMP_FLAGS = (("-fopenmp",), ("-fopenmp=libgomp",), ())

INSTALL_HINT = (
    "Install a C++ compiler (Debian/Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; conda: "
    "conda install gxx) or point the environment variable CXX at one."
)

_PROBE = """
extern "C" int stator_probe(int n) {
    int sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < n; ++i) sum += i;
    return sum;
}
"""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The means to compile C++ text to a shared object on this machine.

    command: the compiler and its leading arguments. flags: for compiling. link: for linking. openmp: path of the loaded
        OpenMP runtime. key: identifies every property of machine and compiler that a binary depends on.
    """

    command: tuple[str, ...]
    version: str
    native: tuple[str, ...]
    threading: tuple[str, ...]
    openmp: str | None
    features: str

    @property
    def flags(self) -> tuple[str, ...]:
        allocation = () if "clang" in self.version else (GCC_ALLOCATION,)
        return (*OPTIMIZE, *allocation, *self.native, *self.threading, *LANGUAGE)

    @property
    def link(self) -> tuple[str, ...]:
        # OpenMP is linked by path: -lgomp would add a second OpenMP runtime if the names differ. The standard libraries
        # are already loaded; linking without them is three times as fast.
        return ("-shared", "-nostdlib", self.openmp or "-lgomp", "-lm")

    @property
    def key(self) -> str:
        openmp = os.path.basename(self.openmp) if self.openmp else ""
        return digest(
            "\0".join((self.version, *self.command[1:], *self.flags, openmp, self.features, platform.machine()))
        )

    def build_command(self, source: str, output: str, header: Path | None = None) -> list[str]:
        """Compile and link. `header`: the folder of a precompiled header."""
        includes = ["-I", str(CSRC)] if header is None else ["-I", str(header), "-I", str(CSRC)]
        return [*self.command, *self.flags, *includes, source, "-o", output, *self.link]


def digest(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:40]


@functools.cache
def cpu_features() -> frozenset[str]:
    """Return the names of the processor's instruction set extensions, or nothing if the kernel does not report them."""
    return frozenset(_cpu_entry("flags", "Features").split())


def float_lanes() -> int:
    """Return how many float32 a vector register holds, as far as choices of speed assume; the text of kernels asks the
    compiler."""
    features = cpu_features()
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= features:
        return 16
    return 8 if {"avx2", "fma"} <= features else 4


@functools.cache
def cpu_vendor() -> str:
    """Return the processor's maker as the processor says it, or nothing if the kernel does not report it."""
    return _cpu_entry("vendor_id")


@functools.cache
def cpu_model() -> str:
    """Return the processor's name and revision, or nothing if the kernel does not report them."""
    return "/".join(map(_cpu_entry, ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size")))


def nearest_cache() -> int:
    """Return the bytes of a core's first-level cache of data; 32 KB if the kernel does not report them."""
    return _cache_bytes("1", 32 << 10)


def second_level_cache() -> int:
    """Return the bytes of a core's second-level cache; 1 MB if the kernel does not report them."""
    return _cache_bytes("2", 1 << 20)


@functools.cache
def _cache_bytes(level: str, default: int) -> int:
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if found == level and kind != "Instruction" and re.fullmatch(r"\d+K", size):
            return int(size[:-1]) << 10
    return default


def _cpu_entry(*names: str) -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() in names:
                    return value.strip()
    except OSError:
        pass
    return ""


def find_openmp() -> str | None:
    """Return the path of the OpenMP runtime that torch has loaded; None if unknown."""
    pattern = re.compile(r"^lib(gomp|iomp5|omp)[.-]")
    loaded: list[str] = []
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
                if pattern.match(os.path.basename(path)) and path not in loaded:
                    loaded.append(path)
    except OSError:
        pass
    torch_root = str(Path(torch.__file__).resolve().parent)
    ours = [path for path in loaded if os.path.realpath(path).startswith(torch_root)]
    for path in (*ours, *loaded):
        return path
    candidates = sorted(p for p in Path(torch_root, "lib").glob("lib*omp*") if pattern.match(p.name))
    return str(candidates[0]) if candidates else None


def find_compiler() -> tuple[str, ...]:
    """Return the compiler's command: CXX if set, else the first of g++, clang++, c++ on the path. Raises
    MissingToolchain."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        words = shlex.split(chosen)
        path = shutil.which(words[0])
        if path is None:
            raise MissingToolchain(
                f"the environment variable CXX names {words[0]!r}, which was not found. {INSTALL_HINT}"
            )
        return (path, *words[1:])
    for name in ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path is not None:
            return (path,)
    raise MissingToolchain(f"no C++ compiler was found (looked for g++, clang++, c++). {INSTALL_HINT}")


def _identity(command: tuple[str, ...]) -> str:
    """Return a value that changes when the compiler is replaced, without running the compiler."""
    status = os.stat(os.path.realpath(command[0]))
    parts = (*command, os.path.realpath(command[0]), str(status.st_mtime_ns), str(status.st_size))
    return digest("\0".join((*parts, ",".join(sorted(cpu_features())), cpu_vendor(), sys.platform)))


def _ask_version(command: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, env=compiler_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        if raised_by_signal_handler(error):
            raise
        raise MissingToolchain(
            f"the C++ compiler {shlex.join(command)} cannot be run: {error}. {INSTALL_HINT}"
        ) from error
    if answer.returncode != 0:
        raise MissingToolchain(
            f"{shlex.join(command)} does not answer --version: {answer.stderr.strip()[:500]}. {INSTALL_HINT}"
        )
    return answer.stdout.splitlines()[0] if answer.stdout else "unknown"


def compiler_environment(folder: Path | None = None) -> dict[str, str]:
    """Return an environment with English messages and without variables that silently change compilation. The
    compiler's temporary files lie in `folder`."""
    hidden = {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX"}
    temporary = {} if folder is None else {"TMPDIR": str(folder)}
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, "LC_ALL": "C", **temporary}


def raise_if_disk_is_full(complaint: str) -> None:
    """Raise OSError if the compiler failed because it could not write."""
    for number, text in ((errno.ENOSPC, "No space left on device"), (errno.EDQUOT, "Disk quota exceeded")):
        if text in complaint:
            raise OSError(number, text)


def _note_path(folder: Path, command: tuple[str, ...]) -> Path:
    return folder / f"compiler-{_identity(command)}.json"


_found: dict[tuple[str, str], Toolchain] = {}


def find_toolchain(notes: Path | None = None) -> Toolchain:
    """Return the toolchain of this process. `notes`: a private folder that remembers working flags.

    The toolchain counts as working until a build fails, because a test program would slow down every cold start. Raises
    MissingToolchain without a compiler.
    """
    known_as = (os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    if known_as in _found:
        return _found[known_as]
    command = find_compiler()
    note = _read_note(_note_path(notes, command)) if notes is not None else None
    if note is None:
        note = {"version": _ask_version(command), "native": NATIVE_FLAGS[0], "threading": OPENMP_FLAGS[0]}
        _write_note(notes, command, note)
    toolchain = Toolchain(
        command=command,
        version=note["version"],
        native=tuple(note["native"]),
        threading=tuple(note["threading"]),
        openmp=find_openmp(),
        features=digest(",".join(sorted(cpu_features()))),
    )
    _found[known_as] = toolchain
    _warn_if_serial(toolchain)
    return toolchain


def _read_note(path: Path) -> dict | None:
    try:
        note = json.loads(path.read_text())
        words = [note["version"], *note["native"], *note["threading"]]
        valid = all(isinstance(word, str) for word in words)
        return note if valid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent or damaged: find the flags again


def _write_note(notes: Path | None, command: tuple[str, ...], note: dict) -> None:
    if notes is None:
        return
    path = _note_path(notes, command)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(note))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # in a read-only folder the next process finds the flags again


def diagnose(toolchain: Toolchain, folder: Path, notes: Path | None = None) -> Toolchain:
    """After a failed build, find flags with which a small OpenMP program builds, loads and runs. Returns a working
    toolchain; it equals the given one if that is not to blame. Raises MissingToolchain otherwise, OSError if `folder`,
    where the program is built, cannot be written."""
    choices = [replace(toolchain, native=native, threading=omp) for omp in OPENMP_FLAGS for native in NATIVE_FLAGS]
    complaint = ""
    for candidate in (toolchain, *(choice for choice in choices if choice != toolchain)):
        problem = _probe(candidate, folder)
        if problem is None:
            if candidate != toolchain:
                _adopt(toolchain, candidate, notes)
            return candidate
        complaint = complaint or problem
    raise MissingToolchain(
        f"the C++ compiler {shlex.join(toolchain.command)} ({toolchain.version}) cannot build a small OpenMP program: "
        f"{complaint}. {INSTALL_HINT}"
    )


def _adopt(failed: Toolchain, working: Toolchain, notes: Path | None) -> None:
    """Use the working flags from now on, in this process and later ones."""
    for known_as, known in list(_found.items()):
        if known == failed:
            _found[known_as] = working
    note = {"version": working.version, "native": working.native, "threading": working.threading}
    _write_note(notes, working.command, note)
    _warn_if_serial(working)


def _warn_if_serial(working: Toolchain) -> None:
    if working.threading != OPENMP_FLAGS[0]:
        logs.warn_once(
            "toolchain:threading",
            f"stator: {shlex.join(working.command)} ({working.version}) cannot use torch's OpenMP runtime "
            f"({working.openmp}), so that kernels run on one core; g++ can.",
        )


def _probe(toolchain: Toolchain, folder: Path) -> str | None:
    """Return None if the toolchain works, else the error."""
    source, output = folder / "probe.cpp", folder / "probe.so"
    source.write_text(_PROBE)
    try:
        result = subprocess.run(
            toolchain.build_command(str(source), str(output)),
            capture_output=True,
            text=True,
            timeout=120,
            env=compiler_environment(folder),
        )
    except (OSError, subprocess.SubprocessError) as error:
        if raised_by_signal_handler(error):
            raise
        return str(error)
    raise_if_disk_is_full(result.stderr)
    if result.returncode != 0:
        return result.stderr.strip()[:800] or f"exit code {result.returncode}"
    try:
        total = ctypes.CDLL(str(output)).stator_probe(100)
    except OSError as error:
        return str(error)
    return None if total == 4950 else f"the program computed {total} instead of 4950"
