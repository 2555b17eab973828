"""Building kernels: sharing, caching, damaged caches, compile errors, missing compilers, one OpenMP runtime."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stator.base import counters, logs
from stator.base.errors import CompileError, MissingToolchain
from stator.runtime import build, toolchain
from stator.runtime.precompiled_header import UNITS_BEFORE

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path / "cache"))
    build.forget_loaded()
    counters.clear()


def kernel(symbol: str, value: int) -> SimpleNamespace:
    text = f'extern "C" void {symbol}(void *const *p) {{ *(long long *)p[0] = {value}; }}'
    return SimpleNamespace(symbol=symbol, source=text)


def run(address: int) -> int:
    result = ctypes.c_int64(-1)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(result))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(pointers))
    return result.value


def test_each_symbol_leads_to_its_own_kernel() -> None:
    addresses = build.build_kernels([kernel(f"k{value}", value) for value in range(5)])
    assert {name: run(address) for name, address in addresses.items()} == {f"k{value}": value for value in range(5)}


def test_no_kernels_need_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert build.build_kernels([]) == {}


def test_a_kernel_asked_for_twice_is_compiled_once() -> None:
    build.build_kernels([kernel("a", 1), kernel("a", 1)])
    build.build_kernels([kernel("a", 1)])
    assert counters.counts["kernels.compiled"] == 1


def test_another_set_that_shares_kernels_compiles_only_the_rest() -> None:
    build.build_kernels([kernel("a", 1), kernel("b", 2)])
    build.forget_loaded()
    addresses = build.build_kernels([kernel("b", 2), kernel("c", 3)])
    assert counters.counts["kernels.compiled"] == 3
    assert run(addresses["b"]) == 2 and run(addresses["c"]) == 3


def test_a_changed_kernel_of_the_same_name_is_another_kernel() -> None:
    first = build.build_kernels([kernel("a", 1)])["a"]
    second = build.build_kernels([kernel("a", 2)])["a"]
    assert (run(first), run(second)) == (1, 2)


def mapped(folder: Path) -> int:
    """How many files in a folder are mapped into this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[-1] for line in lines if line.endswith(".so") and str(folder) in line})


def test_a_unit_is_unloaded_with_the_last_address_of_its_kernels(tmp_path: Path) -> None:
    addresses = build.build_kernels([kernel("a", 1), kernel("b", 2)], threads=1)
    assert mapped(tmp_path) == 1
    del addresses["a"]
    assert mapped(tmp_path) == 1 and run(addresses["b"]) == 2
    addresses.clear()
    assert mapped(tmp_path) == 0


def test_an_unloaded_kernel_is_loaded_again() -> None:
    for _ in range(2):
        assert run(build.build_kernels([kernel("a", 1)])["a"]) == 1
    assert counters.counts["kernels.compiled"] == 1


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(CompileError, match="both called a"):
        build.build_kernels([kernel("a", 1), kernel("a", 2)])


def build_one_by_one(count: int) -> list[int]:
    return [run(build.build_kernels([kernel(f"k{value}", value)])[f"k{value}"]) for value in range(count)]


def precompiled() -> list[Path]:
    return list(build.current_cache().notes.rglob("vec.h.gch"))


@pytest.mark.skipif("clang" in toolchain.find_toolchain().version, reason="Clang's precompiled headers are not used")
def test_a_process_with_many_kernels_parses_the_header_in_advance() -> None:
    build_one_by_one(UNITS_BEFORE)
    assert not precompiled()
    build.build_kernels([kernel("a", 1)])
    (header,) = precompiled()
    made = header.stat().st_mtime_ns
    assert build_one_by_one(UNITS_BEFORE + 2) == list(range(UNITS_BEFORE + 2))
    assert [path.stat().st_mtime_ns for path in precompiled()] == [made]


@pytest.mark.parametrize("size", [0, 5_000, 500_000])
def test_a_damaged_precompiled_header_is_not_relied_on(size: int) -> None:
    build_one_by_one(UNITS_BEFORE + 1)
    for header in precompiled():
        header.write_bytes(header.read_bytes()[:size])
    assert run(build.build_kernels([kernel("a", 7)])["a"]) == 7


@pytest.mark.parametrize("damage", ["truncate", "empty", "garbage", "remove"])
def test_a_damaged_cache_is_built_again(damage: str) -> None:
    build.build_kernels([kernel("a", 1)])
    cache = build.current_cache()
    (unit,) = cache.units.iterdir()
    data = unit.read_bytes()
    unit.unlink()
    if damage != "remove":
        unit.write_bytes({"truncate": data[: len(data) // 2], "empty": b"", "garbage": b"x" * len(data)}[damage])
    build.forget_loaded()
    assert run(build.build_kernels([kernel("a", 1)])["a"]) == 1
    assert counters.counts["kernels.compiled"] == 2


def test_a_compile_error_names_the_kernel_and_keeps_the_source() -> None:
    with pytest.raises(CompileError, match="broken") as caught:
        build.build_kernels([SimpleNamespace(symbol="broken", source='extern "C" void broken() { oops; }')])
    assert "oops" in str(caught.value)
    kept = build.current_cache().folder / "rejected.cpp"
    assert str(kept) in str(caught.value) and "oops" in kept.read_text()


def test_a_source_without_its_entry_point_is_refused() -> None:
    with pytest.raises(CompileError, match="does not define its entry point absent"):
        build.build_kernels([SimpleNamespace(symbol="absent", source="static int unused;")])


def test_a_missing_compiler_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(MissingToolchain, match=r"/nowhere/c\+\+.*(\n.*)?Install"):
        build.build_kernels([kernel("a", 1)])


def test_without_any_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolchain, match="apt-get install"):
        build.build_kernels([kernel("a", 1)])


def fake_compiler(folder: Path, body: str) -> str:
    path = folder / "fake-c++"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("version", "given"), [("g++ 12.2.0", True), ("Debian clang version 14.0.6", False)])
def test_clang_is_not_given_flags_of_gcc_s_register_allocator(version: str, given: bool) -> None:
    chain = dataclasses.replace(toolchain.find_toolchain(), version=version)
    assert (toolchain.GCC_ALLOCATION in chain.build_command("unit.cpp", "unit.so")) == given


def test_a_compiler_that_builds_nothing_is_a_missing_toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only_version = '[ "$1" = --version ] && echo fake 1.0 && exit 0\necho "no cc1plus here" >&2\nexit 1\n'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, only_version))
    with pytest.raises(MissingToolchain, match="no cc1plus here"):
        build.build_kernels([kernel("a", 1)])


def test_a_compiler_that_does_not_know_march_native_is_used_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    picky = 'for word in "$@"; do case "$word" in -m*=native) echo "bad option $word" >&2; exit 1;; esac; done\n'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, picky + f'exec {" ".join(toolchain.find_compiler())} "$@"\n'))
    assert run(build.build_kernels([kernel("a", 7)])["a"]) == 7
    assert toolchain.find_toolchain(build.current_cache().notes).native == ()
    toolchain._found.clear()  # as in another process: it is remembered on disk
    assert toolchain.find_toolchain(build.current_cache().notes).native == ()


def test_a_compiler_without_openmp_gives_kernels_on_one_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picky = 'for word in "$@"; do case "$word" in -fopenmp*) echo "bad option $word" >&2; exit 1;; esac; done\n'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, picky + f'exec {" ".join(toolchain.find_compiler())} "$@"\n'))
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="one core"):
        assert run(build.build_kernels([kernel("a", 7)])["a"]) == 7


def test_a_folder_where_no_program_can_be_loaded_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = ctypes.CDLL

    def loaded(path: str) -> ctypes.CDLL:
        if path.startswith(str(tmp_path)):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", loaded)
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels in .*failed to map segment") as caught:
        addresses = build.build_kernels([kernel("a", 1), kernel("b", 2)]) | build.build_kernels([kernel("c", 3)])
    assert [run(address) for address in addresses.values()] == [1, 2, 3]
    assert len(caught) == 1 and tmp_path not in build.current_cache().folder.parents


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_full_disk_is_named_and_left(everywhere: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    full = '*) [ "$1" = --version ] || { echo "error writing $TMPDIR: No space left on device" >&2; exit 1; };; esac\n'
    body = f'case "$TMPDIR" in {"" if everywhere else tmp_path}{full}exec {" ".join(toolchain.find_compiler())} "$@"\n'
    monkeypatch.setenv("CXX", fake_compiler(tmp_path, body))
    monkeypatch.setenv("TMPDIR", "/nowhere")  # compilers get a folder of the cache
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match=r"cannot keep compiled kernels in .*No space left on device"):
        if everywhere:
            with pytest.raises(CompileError, match=r"No space left on device(.*\n)*.*set STATOR_CACHE_DIR"):
                build.build_kernels([kernel("a", 1)])
        else:
            assert run(build.build_kernels([kernel("a", 1)])["a"]) == 1


def of_lines(name: str, lines: int, text: str = "") -> build._Wanted:
    return build._Wanted(name, "\n" * (lines - 1) + f"{text}\n", name)


def test_units_are_balanced_and_keep_every_kernel() -> None:
    wanted = [of_lines(f"k{n}", lines) for n, lines in enumerate((900, 10, 400, 500, 20))]
    units = build.partition(wanted, 2)
    assert sorted(kernel.symbol for unit in units for kernel in unit) == [f"k{n}" for n in range(5)]
    lengths = [sum(kernel.source.count("\n") for kernel in unit) for unit in units]
    assert max(lengths) - min(lengths) <= 100
    assert len(build.partition(wanted[1:2], 8)) == 1


@pytest.mark.parametrize(("threads", "together"), [(2, True), (16, False)])
def test_kernels_that_call_one_function_lie_in_one_unit_unless_cores_are_idle(threads: int, together: bool) -> None:
    callers = [of_lines(f"k{n}", 280, "multiply_rows<LANES, LANES>(x);") for n in range(3)]
    others = [of_lines(f"k{n}", 60) for n in range(3, 9)]
    units = [{kernel.symbol for kernel in unit} for unit in build.partition([*others, *callers], threads)]
    assert sum(map(len, units)) == 9
    assert any({"k0", "k1", "k2"} <= unit for unit in units) == together


def test_functions_that_units_compile_once_are_those_of_headers() -> None:
    headers = "".join(path.read_text() for path in toolchain.CSRC.glob("vec*.h"))
    assert all(name.strip(" <(") in headers for name in build._FUNCTION_LINES)


_CHILD = """
import sys
from types import SimpleNamespace
from stator.base import counters, logs
from stator.runtime import build
text = 'extern "C" void k{0}(void *const *p) {{ *(long long *)p[0] = {0}; }}'
build.build_kernels([SimpleNamespace(symbol=f"k{n}", source=text.format(n)) for n in range(4)])
print(counters.counts["kernels.compiled"])
"""


def test_processes_share_the_cache_and_may_build_at_once() -> None:
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", _CHILD], stdout=subprocess.PIPE, text=True)

    together = [start() for _ in range(2)]
    assert all(child.communicate(timeout=120)[0].strip() in ("0", "4") for child in together)
    assert start().communicate(timeout=120)[0].strip() == "0"


_OPENMP_CHILD = """
import ctypes, os, threading
from types import SimpleNamespace
import torch
from stator.runtime import build, launch
text = '''
extern "C" int omp_get_num_threads();
extern "C" void count(void *const *p) {
#pragma omp parallel
    {
#pragma omp master
        *(long long *)p[0] = omp_get_num_threads();
    }
}
'''
address = build.build_kernels([SimpleNamespace(symbol="count", source=text)])["count"]
kernel = launch.make_kernel(address, 1, "count")
seen = []
def run():
    result = torch.zeros(1, dtype=torch.int64)
    kernel(result)
    seen.append(int(result))
for threads in (1, 3, 2):
    torch.set_num_threads(threads)
    run()
other = threading.Thread(target=run)  # a thread torch has not met yet
other.start()
other.join()
with open("/proc/self/maps") as maps:
    loaded = {os.path.realpath(line.split()[-1]) for line in maps if "omp" in os.path.basename(line.split()[-1])}
print(seen, len(loaded))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_kernels_use_torchs_openmp_and_its_number_of_threads() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    answer = subprocess.run([sys.executable, "-c", _OPENMP_CHILD], capture_output=True, text=True, env=environment)
    assert answer.stdout.strip() == "[1, 3, 2, 2] 1", answer.stderr
