"""The program of the process that compiles Triton kernels: imports Triton once, then forks a child for each kernel.

Runs as a script, apart from stator: it imports nothing but Triton, and never touches a GPU. It reads jobs from its
standard input, as they come, and writes a result for each to its standard output, as they end (compile_service.py is
the other end). It ends with its parent, or when nothing has been asked of it for a while.
"""

from __future__ import annotations

import contextlib
import gc
import json
import linecache
import os
import re
import select
import signal
import struct
import sys
import tempfile
from collections import deque
from typing import Any, NoReturn

from triton import language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

IDLE_SECONDS = 600
_LENGTH = struct.Struct("<Q")  # of a job
_RESULT = struct.Struct("<QQ")  # the number of a job, counted from 0, and the length of its result
_WATCH_SECONDS = 5  # between looks at the parent
# Triton appends pointers to scratch memory to a kernel's parameters: two from version 3.4, one before
_MOST_SCRATCH = 2
# Printed modules look like this one
_FIRST = {
    "symbol": "first",
    "source": """
import triton
import triton.language as tl


@triton.jit
def first(in0, out0, s0, XBLOCK: tl.constexpr, INDEX: tl.constexpr):
    x = tl.program_id(0).to(INDEX) * XBLOCK + tl.arange(0, XBLOCK)
    t0 = tl.load(in0 + x, x < s0).to(tl.float32)
    tl.store(out0 + x, tl.sum(tl.exp(t0), 0), x < s0)


SIGNATURE = {'in0': '*bf16', 'out0': '*bf16', 's0': 'i32', 'XBLOCK': 'constexpr', 'INDEX': 'constexpr'}
BLOCKS = {'XBLOCK': 128}
WARPS = 4
""",
    "index": "int32",
    "aligned": True,
    "capability": 90,
    "options": {"enable_fp_fusion": False},
}


def compile_kernel(job: dict[str, Any]) -> bytes:
    """Compile the kernel of a printed module: one line of JSON, then the cubin.

    Raises whatever Triton raises; ValueError for a kernel that the launcher cannot launch.
    """
    symbol, text, index = job["symbol"], job["source"], job["index"]
    name = f"<{symbol}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)  # where Triton reads the text of functions
    module: dict[str, Any] = {"__name__": symbol}
    exec(compile(text, name, "exec"), module)
    wide = {"i32": "i64"} if index == "int64" else {}
    signature = {name: wide.get(kind, kind) for name, kind in module["SIGNATURE"].items()}
    pointers = [at for at, kind in enumerate(signature.values()) if kind.startswith("*")]
    attributes = {(at,): [["tt.divisibility", 16]] for at in pointers} if job["aligned"] else {}
    options = {"num_warps": module["WARPS"], **job["options"]}
    if "STAGES" in module:
        options["num_stages"] = module["STAGES"]
    source = ASTSource(module[symbol], signature, {**module["BLOCKS"], "INDEX": getattr(tl, index)}, attributes)
    metadata, ptx, cubin = _run_stages(source, job["capability"], options)
    _check_launchable(metadata, ptx, sum(kind != "constexpr" for kind in signature.values()))
    head = {"symbol": metadata["name"], "shared": metadata["shared"], "threads": 32 * metadata["num_warps"]}
    return json.dumps(head).encode() + b"\n" + cubin


def _run_stages(source: Any, capability: int, options: dict[str, Any]) -> tuple[dict[str, Any], str, bytes]:
    """`triton.compile` without its cache, whose keys take the hash of half a gigabyte, and which nothing here reads."""
    target = GPUTarget("cuda", capability, 32)
    backend = make_backend(target)
    parsed = backend.parse_options(options)
    metadata = {"target": target, **vars(parsed)}
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementation = backend.get_codegen_implementation(parsed)
    made = {"": source.make_ir(target, parsed, implementation, backend.get_module_map(), context)}
    for name, stage in stages.items():
        made[name] = stage(made[[*made][-1]], metadata)
    return metadata, made["ptx"], made["cubin"]


def _check_launchable(metadata: dict[str, Any], ptx: str, count: int) -> None:
    scratch = {name: metadata.get(name, 0) for name in ("global_scratch_size", "profile_scratch_size")}
    if any(scratch.values()):
        raise ValueError(f"the kernel needs scratch memory: {scratch}")
    if metadata["num_ctas"] != 1 or metadata.get("launch_cooperative_grid"):
        raise ValueError("the kernel needs a launch with clusters, or a cooperative one")
    found = re.search(rf"\.entry {metadata['name']}\(([^)]*)\)", ptx)
    extra = found[1].count(".param") - count if found else -1
    if not 0 <= extra <= _MOST_SCRATCH:
        raise ValueError(f"this version of Triton gives kernels {extra} parameters of its own")


def _compile_in_child(job: dict[str, Any], descriptor: int) -> NoReturn:
    """Write the kernel, or an error, to `descriptor`."""
    with tempfile.TemporaryDirectory(prefix="stator-triton-") as folder, open(f"{folder}/log", "w+b") as log:
        os.dup2(log.fileno(), 2)  # where Triton and its assembler explain failures
        tempfile.tempdir = folder
        try:
            result = compile_kernel(job)
        except BaseException as error:
            log.seek(0)
            said = log.read()[-4000:].decode(errors="replace").strip()
            message = f"{type(error).__name__}: {error}" + (f"\n{said}" if said else "")
            result = json.dumps({"error": message}).encode() + b"\n"
    with open(descriptor, "wb") as file:
        file.write(result)
    os._exit(0)


def _fork(job: dict[str, Any]) -> tuple[int, int]:
    """Start a child. Returns where its result can be read, and its process id."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _compile_in_child(job, writing)
        finally:
            os._exit(1)
    os.close(writing)
    return reading, child


class Server:
    """Compiles jobs in as many children as there are usable processors. Waits for nothing but for something to do."""

    def __init__(self, jobs: int, results: int) -> None:
        """jobs, results: descriptors, to read from and to write to."""
        self.jobs, self.results = jobs, results
        self.received, self.unsent = bytearray(), bytearray()
        self.workers = len(os.sched_getaffinity(0))
        self.waiting: deque[tuple[int, dict[str, Any]]] = deque()
        self.running: dict[int, tuple[int, int, list[bytes]]] = {}  # number, process and result, by descriptor
        self.count = 0
        os.set_blocking(results, False)

    def step(self, seconds: float) -> bool:
        """Do what can be done, after waiting up to `seconds` for it. Returns False if there was nothing."""
        while self.waiting and len(self.running) < self.workers:
            number, job = self.waiting.popleft()
            descriptor, child = _fork(job)
            self.running[descriptor] = number, child, []
        writes = [self.results] if self.unsent else []
        readable, writable, _ = select.select([self.jobs, *self.running], writes, [], seconds)
        for descriptor in readable:
            if descriptor == self.jobs:
                self._read_jobs()
            else:
                self._read_result(descriptor)
        if self.unsent:
            self._write()
        return bool(readable or writable)

    def _read_jobs(self) -> None:
        part = os.read(self.jobs, 1 << 20)
        if not part:
            _end()
        self.received += part
        while len(self.received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self.received)[0]
            if len(self.received) < end:
                break
            self.waiting.append((self.count, json.loads(self.received[_LENGTH.size : end])))
            self.count += 1
            del self.received[:end]

    def _read_result(self, descriptor: int) -> None:
        number, child, parts = self.running[descriptor]
        if part := os.read(descriptor, 1 << 20):
            parts.append(part)
            return
        os.close(descriptor)
        del self.running[descriptor]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            parts = [json.dumps({"error": f"the compiling process ended with status {status}"}).encode(), b"\n"]
        result = b"".join(parts)
        self.unsent += _RESULT.pack(number, len(result)) + result

    def _write(self) -> None:
        try:
            del self.unsent[: os.write(self.results, self.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            _end()


def _prepare_children() -> None:
    """Do once what each child would do: set LLVM up, parse Triton's library. Children then take two thirds of the time.
    Their objects are not collected, because that would copy the pages of all objects."""
    gc.freeze()
    gc.disable()
    if not select.select([0], [], [], 0)[0]:
        with contextlib.suppress(Exception):  # children report what is wrong with Triton
            compile_kernel(_FIRST)


def _end() -> NoReturn:
    """The parent is gone, so nobody wants what the children do."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    parent, idle = int(sys.argv[1]), 0
    server = Server(0, os.dup(1))
    os.dup2(2, 1)  # nothing but results may reach the parent
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    _prepare_children()
    while idle < IDLE_SECONDS:
        worked = server.step(_WATCH_SECONDS)
        idle = 0 if worked or server.running else idle + _WATCH_SECONDS
        if not worked and os.getppid() != parent:
            _end()


if __name__ == "__main__":
    main()
