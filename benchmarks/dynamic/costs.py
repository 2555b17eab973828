"""What a version for all sizes costs beside one for a single size: calls, training steps, guards, cold compilations.

`python -m benchmarks.dynamic.costs [calls] [guards] [compile]` prints ratios and their geometric means. A call of code
for all sizes, which two other sizes have made, stands beside code that was compiled for the measured size alone.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stator
from benchmarks.fresh_process import run_module
from benchmarks.measure import seconds_of
from benchmarks.models import build, import_torchvision
from benchmarks.table import geometric_mean
from stator.dynamo.cache import compiled_frames

Inputs = tuple[Any, ...]

COMPILED = ("bert", "gpt2", "resnet18", "bert training", "resnet18 training")


class Case:
    """A function or module, its inputs for a size, and sizes: two that are met first, then the measured one.

    training: whether a call is forward, loss and backward.
    """

    def __init__(
        self, target: Any, inputs: Callable[[int], Inputs], sizes: tuple[int, int, int], training: bool = False
    ) -> None:
        self.target, self.inputs, self.sizes, self.training = target, inputs, sizes, training

    def compiled(self, dynamic: bool | None) -> Callable[..., Any]:
        target = copy.deepcopy(self.target) if isinstance(self.target, nn.Module) else self.target
        compiled = stator.compile(target, dynamic=dynamic)
        if not self.training:
            return compiled
        parameters = list(target.parameters())

        def step(*inputs: Any) -> None:
            compiled(*inputs).backward()
            for parameter in parameters:
                parameter.grad = None

        return step


def normal(*shape: int | None) -> Callable[[int], Tensor]:
    """Makes a tensor of this shape; None stands for the size."""
    return lambda size: torch.randn([size if one is None else one for one in shape])


def of(*makers: Callable[[int], Any]) -> Callable[[int], Inputs]:
    return lambda size: tuple(make(size) for make in makers)


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 8))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


class Block(nn.Module):
    """A block of a transformer, and a loss."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.between(x))
        return x.square().mean() if self.training else x


def cases() -> Iterator[tuple[str, Case]]:
    weight, table = torch.randn(256), torch.randn(1000, 64)
    small, large = (5, 6, 7), (1000, 1200, 1100)
    rows, wide = normal(None, 256), normal(256, None)
    functions: dict[str, tuple[Callable[..., Any], Callable[[int], Inputs]]] = {
        "x + 1": (lambda x: x + 1, of(normal(None))),
        "gelu(x * y)": (lambda x, y: F.gelu(x * y), of(rows, rows)),
        "x + row": (lambda x: (x + weight).tanh(), of(rows)),
        "two results": (lambda x: (x.exp(), x.square()), of(rows)),
        "sum of rows": (lambda x: x.square().sum(1), of(rows)),
        "sum of columns": (lambda x: x.square().sum(0), of(rows)),
        "sum over the size": (lambda x: x.square().sum(1), of(wide)),
        "mean of all": (lambda x: x.abs().mean(), of(rows)),
        "amax": (lambda x: (x * 2).amax(1), of(rows)),
        "amax over the size": (lambda x: (x * 2).amax(1), of(wide)),
        "var": (lambda x: x.var(1), of(wide)),
        "softmax": (lambda x: x.softmax(-1), of(wide)),
        "layer norm": (lambda x: F.layer_norm(x, (256,), weight), of(rows)),
        "transposed": (lambda x, y: x.t() + y, of(wide, rows)),
        "cat": (lambda x, y: torch.cat([x, y], 1) * 2, of(rows, rows)),
        "embedding": (lambda x: F.embedding(x, table) * 2, of(lambda n: torch.randint(0, 1000, (n,)))),
        "cross entropy": (F.cross_entropy, of(rows, lambda n: torch.randint(0, 256, (n,)))),
        "linear, relu": (lambda x: (x @ table.t()[:, :64]).relu(), of(normal(None, 64))),
    }
    for name, (function, inputs) in functions.items():
        for sizes in (small, large):
            yield f"{name}, {sizes[-1]}", Case(function, inputs, sizes)
    labels = lambda n: torch.randint(0, 8, (n,))  # noqa: E731
    tokens = normal(2, None, 128)
    yield "perceptron training, 7", Case(Perceptron(16), of(normal(None, 16), labels), small, True)
    yield "perceptron training, 1100", Case(Perceptron(64), of(normal(None, 64), labels), large, True)
    yield "block, 12", Case(Block(128, 4).eval(), of(tokens), (9, 10, 12))
    yield "block, 160", Case(Block(128, 4).eval(), of(tokens), (100, 130, 160))
    yield "block training, 12", Case(Block(128, 4), of(tokens), (9, 10, 12), True)
    yield "block training, 160", Case(Block(128, 4), of(tokens), (100, 130, 160), True)


def alternating(calls: dict[str, Callable[[], Any]], batches: int, seconds: float) -> dict[str, float]:
    """The least microseconds of one call over alternating batches, each about `seconds` long."""
    once = max(min(seconds_of(call)[0] for _ in range(5)) for call in calls.values())
    repetitions = max(1, int(seconds / once))
    times: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for _ in range(batches):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repetitions):
                call()
            times[name] = min(times[name], (time.perf_counter() - start) * 1e6 / repetitions)
    return times


def measure_call(case: Case, batches: int, seconds: float) -> dict[str, float]:
    *earlier, size = case.sizes
    static, general = case.compiled(False), case.compiled(None)
    with torch.set_grad_enabled(case.training):
        for one in earlier:
            general(*case.inputs(one))
        inputs = case.inputs(size)
        calls = {"static": partial(static, *inputs), "dynamic": partial(general, *inputs)}
        return alternating(calls, batches, seconds)


def measure_guards(case: Case, batches: int, seconds: float) -> dict[str, float]:
    """Microseconds in which the guards of both versions hold for the measured size."""
    *earlier, size = case.sizes
    made: list[tuple[Any, Any, tuple[object, ...]]] = []
    compile_version = compiled_frames.CacheMiss._version

    def recorded(miss: Any, of: Any, function: Any, bound: dict[str, object]) -> Any:
        version = compile_version(miss, of, function, bound)
        made.append((version, function, tuple(bound.values())))
        return version

    calls: dict[str, Callable[[], Any]] = {}
    with mock.patch.object(compiled_frames.CacheMiss, "_version", recorded), torch.no_grad():
        for name, dynamic, sizes in (("static", False, [size]), ("dynamic", None, earlier)):
            compiled = stator.compile(case.target, dynamic=dynamic, backend="eager")
            for one in sizes:
                compiled(*case.inputs(one))
            version, function, values = made[-1]
            inputs = iter(case.inputs(size))
            arguments = tuple(next(inputs) if isinstance(value, Tensor) else value for value in values)
            if not version.guards.check(arguments, function):
                raise RuntimeError("the guards do not hold for the measured size")
            calls[name] = partial(version.guards.check, arguments, function)
    return alternating(calls, batches, seconds)


def compile_once(name: str, dynamic: bool) -> float:
    """Seconds of processor time of the first call beyond a later one, in this process and those that it starts. Unlike
    seconds of a clock they hardly depend on what else the machine does."""
    model, _, mode = name.partition(" ")
    training = mode == "training"
    if model == "resnet18":
        import_torchvision()
        import timm

        module, arguments, keywords = timm.create_model("resnet18"), (torch.randn(2, 3, 64, 64),), {}
    else:
        full = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[model]
        case = build(full, size="small", batch=2, sequence=32)
        module, arguments, keywords = case.model, case.args, case.kwargs  # type: ignore[assignment]
    compiled = stator.compile(module.train(training), dynamic=dynamic)

    def call() -> None:
        with torch.set_grad_enabled(training):
            result = compiled(*arguments, **keywords)
        if training:
            result = getattr(result, "logits", result)
            result.square().mean().backward()

    call_of_eager(module, arguments, keywords)
    gc.collect()  # else chance says in which kind of compilation all objects of torch are traversed, for 0.4 s
    first = processor_seconds(call)
    return first - min(processor_seconds(call) for _ in range(3))


def processor_seconds(call: Callable[[], Any]) -> float:
    def now() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    start = now()
    call()
    return now() - start


def call_of_eager(module: nn.Module, arguments: Inputs, keywords: dict[str, Any]) -> None:
    """Start what torch starts at a first call."""
    with torch.no_grad():
        module(*arguments, **keywords)


def measure_compile(name: str, repetitions: int) -> dict[str, float]:
    """The least processor seconds of cold compilations in fresh processes with empty caches."""
    found: dict[str, list[float]] = {"static": [], "dynamic": []}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        # modules are compiled to byte code once, as where they are installed: not in every process
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        run_module("benchmarks.dynamic.costs", ["--once", name, "dynamic", "--out", str(out)], None)
        for _ in range(repetitions):
            for mode, seconds in found.items():
                run_module("benchmarks.dynamic.costs", ["--once", name, mode, "--out", str(out)], None)
                seconds.append(json.loads(out.read_text()))
    return {mode: min(seconds) for mode, seconds in found.items()}


def report(what: str, unit: str, found: dict[str, dict[str, float]]) -> None:
    print(f"| {what} | static {unit} | dynamic {unit} | ratio |\n| --- | ---: | ---: | ---: |")
    for name, one in found.items():
        print(f"| {name} | {one['static']:.2f} | {one['dynamic']:.2f} | {one['dynamic'] / one['static']:.2f} |")
    ratios = [one["dynamic"] / one["static"] for one in found.values()]
    mean, middle = geometric_mean(ratios), statistics.median(ratios)
    print(f"| geometric mean of {len(ratios)}, median | | | {mean:.3f}, {middle:.3f} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["calls", "guards", "compile"])
    parser.add_argument("--cases", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=0.003, help="of each batch")
    parser.add_argument("--repetitions", type=int, default=3, help="cold compilations of each kind")
    parser.add_argument("--once", nargs=2, help="a model and static or dynamic: compile it in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.once:
        name, mode = options.once
        options.out.write_text(json.dumps(compile_once(name, mode == "dynamic")))
        return
    chosen = {name: case for name, case in cases() if any(part in name for part in options.cases)}
    small = {name: case for name, case in chosen.items() if case.sizes[0] < 10}  # guards do not depend on the size
    for what, measure, of_all in (("calls", measure_call, chosen), ("guards", measure_guards, small)):
        if what in options.what:
            found = {}
            for name, case in of_all.items():
                found[name] = measure(case, options.batches, options.seconds)
                print(name, file=sys.stderr, flush=True)
            report(what, "µs", found)
    if "compile" in options.what:
        names = [name for name in COMPILED if any(part in name for part in options.cases)]
        report("cold compilation", "s", {name: measure_compile(name, options.repetitions) for name in names})


if __name__ == "__main__":
    main()
