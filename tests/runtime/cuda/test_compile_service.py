"""The process that compiles Triton kernels: results, failures, its life and its end; machine code on disk."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from printed import printed

from stator.base.errors import CompileError
from stator.runtime.cuda import compile_service, machine_code
from stator.runtime.cuda.machine_code import Variant, compile_variants, start_compiling

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")


def variant(symbol: str = "kernel_a", amount: str = "1.0", capability: int = 90) -> Variant:
    return Variant(symbol, printed(symbol, amount).source, "int32", True, capability)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setenv("STATOR_CACHE_DIR", str(folder))
    patch.setenv("TRITON_INTERPRET", "1")  # Triton's interpreter is for this process alone
    machine_code.forget_compiled()
    yield folder
    machine_code.forget_compiled()
    compile_service.stop()
    patch.undo()


def helper() -> int:
    """The number of the running helper process, or 0."""
    service = compile_service._service
    return 0 if service is None or service.process.poll() is not None else service.process.pid


def ends(process: int, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def test_kernels_become_machine_code_with_checks_of_indices(cache: Path) -> None:
    wanted = [variant(capability=80), variant()]
    compiled = compile_variants([*wanted, wanted[0]])
    assert list(compiled) == wanted
    for code in compiled.values():
        assert code.symbol == "kernel_a" and code.threads == 128 and code.shared == 0
        assert code.cubin.startswith(b"\x7fELF") and b"__assertfail" in code.cubin
    assert len({code.cubin for code in compiled.values()}) == 2


def test_a_second_process_takes_kernels_from_disk_without_triton(cache: Path) -> None:
    compile_variants([variant()])
    program = """
import sys
from printed import printed
from stator.runtime.cuda import compile_service, machine_code, prepare
variant = machine_code.Variant("kernel_a", printed().source, "int32", True, 90)
prepare("program")
(code,) = machine_code.compile_variants([variant]).values()
assert code.cubin.startswith(b"\\x7fELF") and compile_service._service is None
assert not [name for name in sys.modules if name.partition(".")[0] == "triton"]
"""
    machine_code.prepare("program")
    assert helper()
    folders = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_damaged_machine_code_is_compiled_again(cache: Path) -> None:
    (first,) = compile_variants([variant()]).values()
    for path in cache.glob("*/units/*.bin"):
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    machine_code.forget_compiled()
    (second,) = compile_variants([variant()]).values()
    assert first == second
    machine_code.forget_compiled()
    assert machine_code._find(variant(), machine_code.current_cache())


def test_a_rejected_kernel_is_reported_with_the_message_of_triton(cache: Path) -> None:
    with pytest.raises(CompileError, match=r"(?s)rejected generated code \(kernel_b\).*surprise is not defined"):
        compile_variants([variant(), variant("kernel_b", "surprise")])


def test_a_child_that_dies_is_reported(cache: Path) -> None:
    dying = printed("kernel_c").source + "\nimport os\nos.abort()\n"
    with pytest.raises(CompileError, match="the compiling process ended with status -6"):
        compile_variants([Variant("kernel_c", dying, "int32", True, 90)])
    assert helper()


def test_a_dead_helper_is_replaced(cache: Path) -> None:
    compile_service.start()
    before = helper()
    os.kill(before, signal.SIGKILL)
    assert compile_variants([variant("kernel_d")])
    assert helper() not in (0, before)


def test_a_helper_that_cannot_work_is_an_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_service.stop()
    monkeypatch.setattr(compile_service, "_PROGRAM", Path("/absent.py"))
    with pytest.raises(CompileError, match=r"ended early: .*absent\.py"):
        compile_variants([variant("kernel_e")])
    monkeypatch.setattr(sys, "executable", "/absent")
    machine_code.prepare("a program that may need no kernel")
    with pytest.raises(CompileError, match="cannot be started"):
        compile_variants([variant("kernel_e")])


def test_a_forked_child_has_a_helper_of_its_own(cache: Path) -> None:
    compile_service.start()
    before = helper()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert compile_service._service is None
            assert compile_variants([variant("kernel_f")])
            assert helper() not in (0, before)
            status = 0
        finally:
            compile_service.stop()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert helper() == before and compile_variants([variant("kernel_f")])


def test_the_helper_ends_with_its_parent(cache: Path) -> None:
    """Also if the parent is killed while a forked child of it lives."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        compile_service.start()
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        os.write(writing, f"{helper()} {child}".encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    started, child = map(int, os.read(reading, 100).split())
    os.close(reading)
    os.close(writing)
    try:
        assert started and ends(started)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_kernel_compiles_before_it_is_wanted_and_once(cache: Path) -> None:
    compile_service.start()
    service = compile_service._service
    assert service is not None
    before = service.sent
    for _ in range(2):
        start_compiling(variant("kernel_g"))
    assert select.select([service.from_helper], [], [], 60)[0]
    wanted = [variant("kernel_g"), variant("kernel_h")]
    assert list(compile_variants(wanted)) == wanted and service.sent - before == 2


def test_neither_side_waits_for_the_other_one_to_read(cache: Path) -> None:
    """Jobs and results fill the pipes between the processes many times."""
    compile_service.stop()
    text = "#" + "-" * 50_000 + "\nraise ValueError('x' * 50_000)\n"
    started = time.monotonic()
    jobs = [
        compile_service.submit({"symbol": f"kernel_{at}", "source": text, "index": "int32"}) for at in range(30)
    ]  # the helper still imports Triton
    service = compile_service._service
    assert service is not None and service.unsent and time.monotonic() - started < 5
    compile_service.finish(jobs[:1])
    time.sleep(1)  # the other results are more than fits into a pipe
    compile_service.finish(jobs[::-1])
    assert all(job.result is not None and b"x" * 50_000 in job.result for job in jobs)
    assert not service.jobs and not service.unsent and not service.received


def test_kernels_of_a_helper_that_died_are_compiled_by_the_next_one(cache: Path) -> None:
    start_compiling(variant("kernel_i"))
    before = helper()
    os.kill(before, signal.SIGKILL)
    (code,) = compile_variants([variant("kernel_i")]).values()
    assert code.symbol == "kernel_i" and helper() not in (0, before)


def test_a_forked_child_compiles_for_itself_what_its_parent_had_started(cache: Path) -> None:
    start_compiling(variant("kernel_j"))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            (code,) = compile_variants([variant("kernel_j")]).values()
            status = code.symbol != "kernel_j"
        finally:
            compile_service.stop()
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    (code,) = compile_variants([variant("kernel_j")]).values()
    assert code.symbol == "kernel_j"


def test_threads_share_the_helper(cache: Path) -> None:
    found = {}

    def compile_one(name: str) -> None:
        found[name] = compile_variants([variant(name)])

    threads = [threading.Thread(target=compile_one, args=(f"kernel_{at}",)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {code.symbol for one in found.values() for code in one.values()} == {"kernel_0", "kernel_1"}
