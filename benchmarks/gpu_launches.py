"""Launches of printed Triton kernels on a GPU: host time beside Triton's own launcher, compile and load times, and
whether results are right, also at odd addresses, on other streams, in other threads and in CUDA graphs.

Run as `python -m benchmarks.gpu_launches`. Prints a table; ends with a status of 1 if a check failed.
"""

from __future__ import annotations

import dataclasses
import functools
import linecache
import os
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from stator.graph.fake.fake_mode import FakeMode
from stator.graph.tracing.tracer import trace
from stator.inductor.buffers import Lowered
from stator.inductor.codegen.triton import print_kernel
from stator.inductor.lower import can_lower, lower
from stator.inductor.passes import run_passes, with_expressions
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule import schedule
from stator.inductor.schedule.groups import Group
from stator.prims.record import TensorMeta
from stator.runtime import build
from stator.runtime.cuda import COMPILER_OPTIONS, compile_service, kernels, load_kernels, machine_code

DEVICE = torch.device("cuda", 0)
Tensors = Sequence[torch.Tensor]
KERNELS = 32  # compiled at once
LAUNCHES, BATCHES = 200, 15  # between two synchronizations, fewer than the driver queues; and how often


class PrintedGraph:
    """A function of tensors as printed kernels."""

    def __init__(self, function: Callable[..., torch.Tensor], inputs: Tensors) -> None:
        mode = FakeMode()
        fakes = [mode.make(TensorMeta(tuple(one.shape), one.stride(), one.dtype, DEVICE, 0)) for one in inputs]
        with torch.no_grad():
            graph, sizes = with_expressions(trace(function, fakes, keep=can_lower).graph)
        self.lowered: Lowered = lower(run_passes(graph, False), False, sizes)
        self.groups = [step for step in schedule(self.lowered).steps if isinstance(step, Group)]
        self.sources: list[KernelSource] = [
            print_kernel(group, self.lowered.buffers, knowledge=self.lowered.sizes) for group in self.groups
        ]

    def launches(self, device: torch.device = DEVICE) -> Callable[..., torch.Tensor]:
        """Return the function, compiled. Its results have memory of their own in each call."""
        loaded = load_kernels(self.sources, device)
        bound = [
            loaded[source.symbol].bind(len(group.reads) + len(group.writes))
            for source, group in zip(self.sources, self.groups, strict=True)
        ]

        def call(*inputs: torch.Tensor) -> torch.Tensor:
            memory = dict(zip(self.lowered.inputs, inputs, strict=True))
            for run, group in zip(bound, self.groups, strict=True):
                for name in group.writes:
                    layout = self.lowered.buffers[name].layout
                    memory[name] = torch.empty_strided(layout.size, layout.stride, dtype=layout.dtype, device=device)
                run(*[memory[name] for name in (*group.reads, *group.writes)])
            return memory[self.lowered.outputs[0]]

        return call


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * y + x


def layer_norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + y, x.shape[-1:])


def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * y, -1)


def gathered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x[(y.abs() * 10).long() % x.shape[0], 0]


def total(*tensors: torch.Tensor) -> torch.Tensor:
    return functools.reduce(torch.add, tensors)


FUNCTIONS = (chain, layer_norm, softmax, gathered)


def inputs(*shape: int) -> list[torch.Tensor]:
    return [torch.randn(shape, device=DEVICE) for _ in range(2)]


def check(name: str, test: Callable[[], None]) -> bool:
    try:
        test()
    except Exception:
        print(f"{name:44} WRONG\n{traceback.format_exc(limit=-4)}", flush=True)
        return False
    print(f"{name:44} right", flush=True)
    return True


def compare(function: Callable[..., torch.Tensor], *shape: int) -> None:
    given = inputs(*shape)
    call = PrintedGraph(function, given).launches()
    torch.testing.assert_close(call(*given), function(*given), rtol=1e-4, atol=1e-4)


def odd_addresses() -> None:
    size = 1 << 16
    given = inputs(size)
    call = PrintedGraph(chain, given).launches()
    for start in (0, 1, 2, 3, 4, 0):
        moved = [torch.randn(size + 8, device=DEVICE)[start : start + size] for _ in range(2)]
        torch.testing.assert_close(call(*moved), chain(*moved), rtol=1e-4, atol=1e-4)


def own_stream(call: Callable[..., torch.Tensor], given: Tensors) -> None:
    """A launch waits for the work before it on its stream, and for no other."""
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        changed = [one + 1 for one in given]
        result = call(*changed)
        busy = not stream.query()
    stream.synchronize()
    torch.testing.assert_close(result, chain(*changed), rtol=1e-4, atol=1e-4)
    if not busy:
        raise AssertionError("the launch waited for the stream")


def two_streams() -> None:
    given = inputs(512, 512)
    call = PrintedGraph(chain, given).launches()
    own_stream(call, given)
    own_stream(call, given)


def fresh_thread() -> None:
    given = inputs(512, 512)
    call, expected, failures = PrintedGraph(chain, given).launches(), chain(*given), []
    outs = [torch.empty_like(given[0])]
    source = PrintedGraph(chain, given).sources[0]
    run = load_kernels([source], DEVICE)[source.symbol].bind(3)

    def work() -> None:
        try:
            run(*given, *outs)  # before anything else has used the GPU in this thread
            torch.testing.assert_close(call(*given), expected, rtol=1e-4, atol=1e-4)
            torch.cuda.synchronize()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    torch.testing.assert_close(outs[0], expected, rtol=1e-4, atol=1e-4)


def cuda_graph() -> None:
    """Capture and replay; a variant is compiled and loaded during the capture."""
    memory = torch.randn(2, (1 << 16) + 1, device=DEVICE)
    given = [memory[0, :-1], memory[1, 1:]]
    function = lambda x, y: torch.sin(x) * y  # noqa: E731
    call = PrintedGraph(function, given).launches()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(*given)
    memory.normal_()
    graph.replay()
    torch.testing.assert_close(result, function(*given), rtol=1e-4, atol=1e-4)


def checks() -> bool:
    tests: list[tuple[str, Callable[[], None]]] = [
        *((f"{one.__name__} 512 x 1024", lambda one=one: compare(one, 512, 1024)) for one in FUNCTIONS),
        *((f"{one.__name__} 37 x 2500", lambda one=one: compare(one, 37, 2500)) for one in FUNCTIONS[:3]),
        ("addresses that are no multiples of 16", odd_addresses),
        ("the current stream", two_streams),
        ("a thread that has not used the GPU", fresh_thread),
        ("a CUDA graph, loading in its capture", cuda_graph),
    ]
    results = [check(*test) for test in tests]  # all of them, also behind a failure
    return all(results)


def microseconds(call: Callable[[], object]) -> float:
    """Host time of a call that the GPU does not hold up."""
    for _ in range(20):
        call()
    times = []
    for _ in range(BATCHES):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        times.append((time.perf_counter() - start) / LAUNCHES)
    return statistics.median(times) * 1e6


def triton_launch(source: KernelSource, tensors: Tensors) -> Callable[[], object]:
    """The launch of the same kernel by Triton's launcher."""
    name = f"<{source.symbol} for Triton>"
    linecache.cache[name] = (len(source.source), None, source.source.splitlines(True), name)
    module: dict[str, Any] = {"__name__": source.symbol}
    exec(compile(source.source, name, "exec"), module)
    grid, index = module["launch"]()
    function = module[source.symbol][grid]
    options = {**module["BLOCKS"], "INDEX": index, "num_warps": module["WARPS"], **COMPILER_OPTIONS}
    return lambda: function(*tensors, **options)


def launch_times() -> None:
    print(f"\n{'host time of a launch, microseconds':44}")
    x, y = inputs(64, 64)
    out, bound = torch.empty_like(x), torch.empty_like(x)
    (source,) = PrintedGraph(chain, (x, y)).sources
    run = load_kernels([source], DEVICE)[source.symbol].bind(3)
    many = [torch.randn(64, 64, device=DEVICE) for _ in range(11)]
    (wide,) = PrintedGraph(total, many).sources
    run_wide = load_kernels([wide], DEVICE)[wide.symbol].bind(12)
    rows: list[tuple[str, Callable[[], object]]] = [
        ("kernel of 3 tensors, called from Python", lambda: run(x, y, out)),
        ("kernel of 12 tensors", lambda: run_wide(*many, out)),
        ("the first one by Triton's launcher", triton_launch(source, (x, y, out))),
        ("torch.add(out=)", lambda: torch.add(x, y, out=bound)),
        ("a call of an empty function", lambda: None),
    ]
    for name, call in rows:
        try:
            print(f"{name:44} {microseconds(call):8.2f}", flush=True)
        except Exception as error:
            print(f"{name:44} {type(error).__name__}: {str(error)[:200]}", flush=True)


def forget() -> None:
    """Make the next load as one in a new process."""
    machine_code.forget_compiled()
    kernels._functions.clear()
    build.forget_loaded()


def compile_times() -> None:
    print(f"\n{f'seconds for {KERNELS} kernels of layer norm':44}")
    (source,) = PrintedGraph(layer_norm, inputs(512, 1024)).sources[-1:]

    def texts(salt: str) -> list[KernelSource]:
        renamed = [f"{source.symbol}_{salt}{at}" for at in range(KERNELS)]
        return [
            dataclasses.replace(source, symbol=name, source=source.source.replace(source.symbol, name))
            for name in renamed
        ]

    def timed(name: str, texts: list[KernelSource]) -> None:
        forget()
        start = time.perf_counter()
        load_kernels(texts, DEVICE)
        print(f"{name:44} {time.perf_counter() - start:8.3f}", flush=True)

    compile_service.stop()
    timed("one kernel, and the start of the helper", texts("first")[:1])
    timed("all, the helper is ready", texts("ready"))
    compile_service.stop()
    timed("all, and the start of the helper", texts("cold"))
    compile_service.stop()
    timed("all, from disk", texts("cold"))
    if compile_service._service is not None:
        raise AssertionError("loading from disk started the helper")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STATOR_CACHE_DIR"] = folder
        build.forget_loaded()
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {machine_code.triton_version()}")
        right = checks()
        launch_times()
        compile_times()
        compile_service.stop()
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
