"""One family under one compiler, compared with eager: what ran, what was equal, graphs, breaks and compilations."""

from __future__ import annotations

import copy
import functools
import logging
import math
import random
import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

# Captured models make attention masks without looking at their data, as under torch.compile, so another kernel may run.
TOLERANCE = 1e-5  # of the largest magnitude of each tensor, float32
# Kernels of our own add up in another order, at each layer.
OWN_KERNELS = 1e-3
SLOWEST = 0.97  # of eager's speed; below, compiled code is a loss


class EagerFails(Exception):
    """Eager PyTorch does not take the model through this call, so there is nothing to compare with."""


# (built, model or its compiled form, inputs) -> the outputs that are compared; nothing where only the time counts
Call = Callable[[Any, Any, dict[str, Any]], Any]
Compare = Callable[[Any, Any], float]


def measure_stator(built: Any) -> dict[str, Any]:
    """The columns of stator with backend "eager"."""
    return _by_stator(built, _call, difference, backend="eager")


def measure_dynamic(built: Any) -> dict[str, Any]:
    """One call with symbols for all sizes, and two with other sizes, under backend "eager"; `recompiled` counts the
    frames that the others compiled, and then `causes` names the guards that failed and the values that a use needs."""
    inputs = [built.inputs(0), *_other_sizes(built)]
    result = _by_stator(built, _call, difference, inputs=inputs, backend="eager", dynamic=True)
    return result | {"sizes": list(map(_sizes, inputs))}


def _sizes(inputs: dict[str, Any]) -> str:
    return ", ".join("x".join(map(str, one.shape)) for one in inputs.values() if isinstance(one, torch.Tensor))


def _other_sizes(built: Any) -> list[dict[str, Any]]:
    """The first of the model's sets of calls that eager runs."""
    problem: Exception | None = None
    for calls in built.other_sizes():
        try:
            for inputs in calls:
                _call(built, built.model, inputs)
        except Exception as error:
            problem = problem or error
        else:
            return calls  # type: ignore[no-any-return]
    raise EagerFails(f"{type(problem).__name__}: {problem}") from problem


def measure_train(built: Any) -> dict[str, Any]:
    """Steps of training under stator with backend "aot_eager": what the model gives in training mode, and the
    gradients of its parameters, with eager's random numbers."""
    built.model.train()
    return _by_stator(built, _step, _step_difference, backend="aot_eager", options={"exact_random": True})


def measure_inductor(built: Any) -> dict[str, Any]:
    """The same steps under the default backend, whose kernels are our own."""
    built.model.train()
    return _by_our_kernels(built, _step, _step_difference)


def measure_speed(built: Any) -> dict[str, Any]:
    """Inference under the default backend, beside eager's time. Random numbers are eager's in the comparison and
    stator's own in the timing, because these are what a user gets."""
    if hasattr(built, "compiled"):
        return _measure_loop(built)
    result = _by_our_kernels(built, _call, difference)
    return result | _speed(built, _plain_call)


def measure_speed_train(built: Any) -> dict[str, Any]:
    """Forward and backward under the default backend, beside eager's time."""
    if hasattr(built, "compiled"):
        return _measure_loop(built)
    return measure_inductor(built) | _speed(built, _plain_step)


def _measure_loop(built: Any) -> dict[str, Any]:
    """A program around several networks: its own step is what is compared and timed."""
    result = _by_our_kernels(built, _loop, _step_difference)
    return result | _speed(built, lambda built, program, inputs: program(**inputs))


def _by_our_kernels(built: Any, call: Call, compare: Compare) -> dict[str, Any]:
    """The columns of the default backend. A program that amplifies rounding (thresholds, roots near zero) may differ
    by more than the tolerance: then the kernels have to equal eager where they round as eager does."""
    options = {"exact_random": True}
    result = _by_stator(built, call, compare, OWN_KERNELS, options=options)
    if result["equal"] == "different":
        exact = _by_stator(built, call, compare, options={**options, "exact_rounding": True})
        if exact["equal"] in ("bitwise", "close"):
            result["equal"] = "but for rounding"
    return result


def _by_stator(
    built: Any,
    call: Call,
    compare: Compare,
    tolerance: float = TOLERANCE,
    inputs: list[dict[str, Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    from stator.base import counters, logs

    reasons: list[str] = []
    causes: list[str] = []
    logs.enable("graph_breaks", "recompiles") if inputs else logs.enable("graph_breaks")
    logging.getLogger("stator").handlers[:] = [_Lines("graph_breaks", reasons), _Lines("recompiles", causes)]
    counters.clear()
    compiled = _compiled(built, **options)

    def state() -> dict[str, int]:
        return {"frames": counters.counts["frames"], "graphs": counters.counts["graphs"]}

    result = _measure(built, compiled, state, call, compare, tolerance, inputs)
    fallen_back = [line for line in result.pop("warnings") if line.startswith("stator")]
    result["breaks"] = len(reasons) + len(fallen_back)
    result["reasons"] = _ranked(reasons + [f"fallback: {line}" for line in fallen_back])
    result["capture_s"] = round(counters.seconds["capture"], 3)
    causes = [line for line in causes if line.startswith("recompiling") or " needs constants for " in line]
    return result | ({"causes": _ranked(causes)} if inputs and result["recompiled"] else {})


def _compiled(built: Any, **options: Any) -> Any:
    import stator

    compile_ = functools.partial(stator.compile, **options)
    return built.compiled(compile_) if hasattr(built, "compiled") else compile_(built.model)


def measure_peer(built: Any) -> dict[str, Any]:
    """The columns of torch.compile with backend "eager"."""
    from torch._dynamo.utils import compile_times, counters

    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(1)
        return gm.forward

    counters.clear()
    compiled = torch.compile(built.model, backend=backend)
    result = _measure(
        built, compiled, lambda: {"frames": counters["frames"]["ok"], "graphs": len(graphs)}, _call, difference
    )
    result.pop("warnings")
    reasons = Counter({reason.strip().splitlines()[0]: count for reason, count in counters["graph_break"].items()})
    result["breaks"] = sum(reasons.values())
    result["reasons"] = dict(reasons.most_common())
    times = compile_times(repr="csv", aggregate=True)
    result["capture_s"] = round(float(dict(zip(*times, strict=True)).get("_compile.compile_inner", math.nan)), 3)
    return result


def _measure(
    built: Any,
    compiled: Any,
    state: Callable[[], dict[str, int]],
    call: Call,
    compare: Compare,
    tolerance: float = TOLERANCE,
    inputs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Calls with these inputs, or two with different values of the same shapes, each compared with eager on the same
    random numbers."""
    first, *later = inputs or [built.inputs(0), built.inputs(1)]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            expected = call(built, built.model, first)
        except Exception as error:
            raise EagerFails(f"{type(error).__name__}: {error}") from error
        again = compare(call(built, built.model, first), expected)
        expected_later = [call(built, built.model, one) for one in later]
        before = time.perf_counter()
        heard.clear()
        actual = call(built, compiled, first)
        seconds = time.perf_counter() - before
        after_first = state()
        actual_later = [call(built, compiled, one) for one in later]
        after_later = state()
    pairs = zip([actual, *actual_later], [expected, *expected_later], strict=True)
    largest = max(compare(one, other) for one, other in pairs)
    if again == 0:
        verdict = "bitwise" if largest == 0 else "close" if largest <= tolerance else "different"
    else:
        verdict = "eager differs from itself"
    return {
        "equal": verdict,
        "difference": largest if math.isfinite(largest) else str(largest),
        "graphs": after_first["graphs"],
        "frames": after_first["frames"],
        "recompiled": after_later["frames"] - after_first["frames"],
        "first_call_s": round(seconds, 3),
        "warnings": [str(entry.message).splitlines()[0] for entry in heard],
    }


def _speed(built: Any, call: Call) -> dict[str, Any]:
    """Eager's milliseconds, and how many times as fast the compiled calls are: the median over pairs of neighbours.

    Of the processor: models run on this thread alone, and other work on the machine must not count. What it does to
    caches and clock counts all the same, but for both of a pair, which come in either order by turns. Pairs are added
    while their spread leaves open whether the program is slower than eager; `noise` is the median's standard error.
    """
    compiled = _compiled(built)
    inputs = built.inputs(0)

    def seconds(model: Any) -> float:
        given = copy.deepcopy(inputs)
        start = time.thread_time()
        call(built, model, given)
        return time.thread_time() - start

    _warm(lambda: (seconds(built.model), seconds(compiled)))
    pairs: list[tuple[float, float]] = []
    began = time.thread_time()
    while True:
        if len(pairs) % 2:
            pairs.append((seconds(built.model), seconds(compiled)))
        else:
            ours = seconds(compiled)
            pairs.append((seconds(built.model), ours))
        ratios = [theirs / ours for theirs, ours in pairs]
        speed, noise = statistics.median(ratios), _median_error(ratios)
        spent = time.thread_time() - began
        doubtful = abs(speed - SLOWEST) < 3 * noise and spent < _DOUBTFUL_SECONDS
        if len(pairs) >= _MOST_PAIRS or (len(pairs) >= _LEAST_PAIRS and spent > _TIMED_SECONDS and not doubtful):
            break
    eager_ms = statistics.median(theirs for theirs, _ in pairs) * 1e3
    return {"eager_ms": round(eager_ms, 3), "speed": round(speed, 3), "noise": round(noise, 3)}


_LEAST_PAIRS, _MOST_PAIRS, _TIMED_SECONDS, _DOUBTFUL_SECONDS = 7, 400, 1.0, 8.0
_WARM_ROUNDS, _MOST_WARM_ROUNDS = 3, 40


def _warm(round_: Callable[[], object]) -> None:
    """Rounds until as many as `_WARM_ROUNDS` in a row compiled nothing: the speed is that of later calls."""
    from stator.base import counters

    quiet = 0
    for _ in range(_MOST_WARM_ROUNDS):
        before = counters.counts["frames"]
        round_()
        quiet = quiet + 1 if counters.counts["frames"] == before else 0
        if quiet == _WARM_ROUNDS:
            return


def _median_error(values: list[float]) -> float:
    """The standard error of the median, from the quartiles: a normal distribution has them 1.35 deviations apart."""
    if len(values) < 4:
        return math.inf
    low, _, high = statistics.quantiles(values, n=4)
    return 1.253 * (high - low) / 1.349 / math.sqrt(len(values))


@torch.no_grad()
def _plain_call(built: Any, model: Any, inputs: dict[str, Any]) -> None:
    model(**inputs)


def _plain_step(built: Any, model: Any, inputs: dict[str, Any]) -> None:
    built.model.zero_grad(set_to_none=True)
    parts = _differentiable(model(**inputs))
    if parts:
        torch.autograd.backward([part.sum() for part in parts])


def _differentiable(outputs: Any) -> list[torch.Tensor]:
    parts = [leaf for _, leaf in _leaves(outputs, "", 0) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return list({id(part): part for part in parts}.values())


@torch.no_grad()
def _call(built: Any, model: Any, inputs: dict[str, Any]) -> Any:
    _seed()
    return model(**copy.deepcopy(inputs))


def _seed() -> None:
    """Of all three generators: some models draw masks with NumPy's, or choose layers with Python's."""
    torch.manual_seed(7)
    numpy.random.seed(7)
    random.seed(7)


def _step(built: Any, model: Any, inputs: dict[str, Any]) -> Any:
    """The output, by parameter the gradient of a sum over it, and the buffers: each begins as it was at first."""
    buffers = {name: buffer.clone() for name, buffer in built.model.named_buffers()}
    built.model.zero_grad(set_to_none=True)
    _seed()
    outputs = model(**copy.deepcopy(inputs))
    parts = _differentiable(outputs)
    if parts:
        sum((part.double() * _weights(part)).sum() for part in parts).backward()
    gradients = {name: parameter.grad for name, parameter in built.model.named_parameters()}
    changed = {name: buffer.clone() for name, buffer in built.model.named_buffers()}
    with torch.no_grad():
        for name, buffer in built.model.named_buffers():
            if name in buffers and buffer.shape == buffers[name].shape:  # some make a table for the size they meet
                buffer.copy_(buffers[name])
    return {"outputs": _detached(outputs), "gradients": gradients, "buffers": changed}


def _loop(built: Any, program: Any, inputs: dict[str, Any]) -> Any:
    """What a step gives, and the gradients, weights and buffers after it: each begins as at first."""
    program.reset()
    _seed()
    outputs = program(**copy.deepcopy(inputs))
    gradients = {name: parameter.grad for name, parameter in program.module.named_parameters()}
    return copy.deepcopy(
        {"outputs": _detached(outputs), "gradients": gradients, "buffers": program.module.state_dict()}
    )


def _step_difference(actual: dict[str, Any], expected: dict[str, Any]) -> float:
    """Gradients that are zero but for rounding have no scale of their own: that of each is at least a hundredth of the
    largest in the model, so that 1e-5 of it is how exact float32 is for the largest."""
    worst = max(difference(actual[name], expected[name]) for name in ("outputs", "buffers"))
    theirs = {name: gradient for name, gradient in expected["gradients"].items() if gradient is not None}
    ours = {name: gradient for name, gradient in actual["gradients"].items() if gradient is not None}
    if ours.keys() != theirs.keys():
        return math.inf
    largest = max((gradient.abs().max().item() for gradient in theirs.values() if gradient.numel()), default=0.0)
    return max([worst, *(_leaf_difference(ours[name], theirs[name], largest / 100) for name in theirs)])


def _weights(part: torch.Tensor) -> torch.Tensor:
    """Other ones for each element, so that no gradient is zero because it was summed over."""
    return torch.linspace(0.5, 1.5, part.numel(), dtype=torch.float64, device=part.device).reshape(part.shape).cos()


def _detached(outputs: Any) -> list[Any]:
    return [(path, leaf.detach() if isinstance(leaf, torch.Tensor) else leaf) for path, leaf in _leaves(outputs, "", 0)]


class _Lines(logging.Handler):
    """Keeps the first line of every report in a log, and the place that follows it."""

    def __init__(self, log: str, lines: list[str]) -> None:
        super().__init__()
        self.log, self.lines = log, lines

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.endswith(self.log):
            self.lines.append(" @ ".join(line.strip() for line in record.getMessage().splitlines()[:2]))


def _ranked(lines: list[str]) -> dict[str, int]:
    return dict(Counter(map(_without_folders, lines)).most_common())


def _without_folders(text: str) -> str:
    """Paths as they are inside of a package or this project: the same on every machine."""
    return re.sub(r"/[^\s\"']*/(?:site-packages|python3\.\d+)/", "", text).replace(_PROJECT, "")


_PROJECT = f"{Path(__file__).parents[2]}/"


# ---- comparing outputs ----


def difference(actual: Any, expected: Any) -> float:
    """The largest |actual - expected| / max |expected| of all tensors; infinite where anything else differs."""
    worst = 0.0
    ours, theirs = list(_leaves(actual, "", 0)), list(_leaves(expected, "", 0))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        return math.inf
    for (_, a), (_, e) in zip(ours, theirs, strict=True):
        worst = max(worst, _leaf_difference(a, e))
    return worst


def _leaf_difference(a: Any, e: Any, scale: float = 1e-12) -> float:
    if not isinstance(e, torch.Tensor):
        return 0.0 if a == e or (a != a and e != e) else math.inf
    if type(a) is not type(e) or a.shape != e.shape or a.dtype != e.dtype or a.device != e.device:
        return math.inf
    if torch.equal(a, e):
        return 0.0
    if not (e.is_floating_point() or e.is_complex()):
        return math.inf
    kind = torch.complex128 if e.is_complex() else torch.float64
    a, e = a.detach().to(kind), e.detach().to(kind)
    finite = e.isfinite() if not e.is_complex() else ~e.isnan()
    if not torch.equal(a.isnan(), e.isnan()) or not torch.equal(a[~finite & ~e.isnan()], e[~finite & ~e.isnan()]):
        return math.inf
    a, e = a[finite], e[finite]
    return (a - e).abs().max().item() / max(e.abs().max().item(), scale, 1e-12) if e.numel() else 0.0


_PLAIN = (torch.Tensor, int, float, complex, str, bool, bytes, type(None), torch.dtype, torch.device, torch.Size)


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """(where, tensor or plain value) of everything inside an output: containers, dataclasses, caches."""
    if depth > 12:
        return
    if isinstance(value, _PLAIN):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from _leaves(entry, f"{path}[{index}]", depth + 1)
    elif not isinstance(value, torch.nn.Module | type) and not callable(value) and hasattr(value, "__dict__"):
        for name, entry in sorted(vars(value).items()):
            yield from _leaves(entry, f"{path}.{type(value).__name__}.{name}", depth + 1)
