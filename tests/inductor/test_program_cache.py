"""Programs on disk: found by an equal graph alone, equal to eager, never relied on where anything else differs."""

from __future__ import annotations

import gc
import linecache
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import stator
from stator import pipeline
from stator.base import counters, dumps
from stator.base.config import Options
from stator.graph.ir import identity
from stator.graph.ir.size_bindings import environment_of
from stator.graph.tracing.tracer import trace
from stator.inductor import program_cache
from stator.inductor.codegen.host import compile_text, execute
from stator.inductor.lower import can_lower
from stator.inductor.program_cache import ProgramEntry
from stator.prims import extend
from stator.runtime import build, choices
from stator.shapes.conditions import compare


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(program_cache, "is_on", True)
    monkeypatch.setattr(extend, "is_used", False)  # other tests of this process may have used it
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path / "cache"))
    build.forget_loaded()
    stator.reset()
    yield tmp_path / "cache"
    build.forget_loaded()
    stator.reset()


def found() -> int:
    return counters.counts["programs.found"]


def again(function: Callable[..., Any], *inputs: Any, **chosen: Any) -> tuple[Any, int]:
    """The result of a first call, with what other first calls left on disk, and how many programs it found there."""
    stator.reset()
    before = found()
    return stator.compile(function, **chosen)(*inputs), found() - before


def softmax_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + 2 * y).softmax(-1)


X, Y = torch.randn(6, 8), torch.randn(6, 8)


def test_the_second_first_call_finds_the_program() -> None:
    expected = softmax_of_sum(X, Y)
    for programs in (0, 1):
        result, count = again(softmax_of_sum, X, Y)
        torch.testing.assert_close(result, expected)
        assert count == programs


def test_what_a_stage_makes_is_not_made_again() -> None:
    again(softmax_of_sum, X, Y)
    counters.clear()
    again(softmax_of_sum, X, Y)
    assert not {"lower", "schedule", "codegen"} & counters.seconds.keys()


def test_training_finds_forward_and_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    x = torch.randn(2, 3, 8, 8)
    gradients, programs = [], []
    for run in (model, None, None):
        stator.reset()
        before = found()
        model.zero_grad()
        model[1].reset_running_stats()
        (run or stator.compile(model))(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()] + [model[1].running_mean.clone()])
        programs.append(found() - before)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients[2], gradients[1], rtol=0, atol=0)
    assert programs == [0, 0, 2]


def test_a_program_for_all_sizes_is_found_and_serves_other_sizes() -> None:
    for programs in (0, 1):
        stator.reset()
        before = found()
        compiled = stator.compile(softmax_of_sum, dynamic=True)
        for rows, columns in ((6, 8), (3, 5), (7, 129)):
            x, y = torch.randn(rows, columns), torch.randn(rows, columns)
            torch.testing.assert_close(compiled(x, y), softmax_of_sum(x, y))
        assert found() - before == programs


def test_a_program_that_relies_on_a_new_fact_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    original = pipeline._program_of

    def with_a_fact(gm: fx.GraphModule, *arguments: Any) -> Any:
        environment = environment_of(gm.graph)
        assert environment is not None
        environment.assume(compare(">=", next(iter(environment.hints)), 3))
        return original(gm, *arguments)

    monkeypatch.setattr(pipeline, "_program_of", with_a_fact)
    for _ in range(2):
        assert again(softmax_of_sum, X, Y, dynamic=True)[1] == 0


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_random_numbers_and_written_inputs(mode: str) -> None:
    def step(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return nn.functional.dropout(x, 0.5) + total

    results = []
    for _ in range(2):
        torch.manual_seed(3)
        total = torch.ones(64)
        result, count = again(step, torch.arange(64.0), total, mode=mode)
        torch.testing.assert_close(total, torch.arange(64.0) + 1)
        results.append((result, count))
    assert [count for _, count in results] == [0, 1]
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=0)


def small_constants(x: torch.Tensor) -> torch.Tensor:
    return x[:, torch.tensor([3, 1, 0])] * torch.tensor([1.5, -2.0, float("inf")])


def expanded_constant(x: torch.Tensor) -> torch.Tensor:
    return x[None].expand(64, 6, 8) * torch.arange(8.0).sin().cos().exp().log1p().expand(6, 8)


def part_of_a_constant(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(512)
    folded = (places[:, None] - places[None]).abs().float().log1p().clamp(max=9).sin()
    return x @ folded[3:11, 5:13] + x @ folded[::64, ::64]


def large_constants(x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1 << 18)
    return sum([x.sum() * (places * n).float().sin().cos().exp().log1p() for n in (1, 2)])  # type: ignore[return-value]


@pytest.mark.parametrize("function", [small_constants, expanded_constant, part_of_a_constant, large_constants])
def test_constants_are_stored_with_the_program(function: Callable[..., Any]) -> None:
    for programs in (0, 1):
        result, count = again(function, X)
        torch.testing.assert_close(result, function(X))
        assert count == programs


def test_a_changed_constant_is_another_program() -> None:
    def scaled(by: list[float]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x * torch.tensor(by)

    for last, programs in ((1.0, 0), (2.0, 0), (1.0, 1)):
        by = [0.5] * 9_999 + [last]
        result, count = again(scaled(by), torch.ones(10_000))
        torch.testing.assert_close(result, torch.tensor(by))
        assert count == programs


TABLE = torch.ones(8)


@torch.compiler.allow_in_graph
def scaled_by_table(x: torch.Tensor) -> torch.Tensor:
    return x * TABLE


def test_a_tensor_that_the_program_changes_is_no_constant() -> None:
    for _ in range(2):
        TABLE.fill_(1.0)
        stator.reset()
        compiled = stator.compile(lambda x: scaled_by_table(x + 1) * 2)
        for value in (1.0, 3.0):
            TABLE.fill_(value)
            torch.testing.assert_close(compiled(X), (X + 1) * value * 2)


def branch(x: torch.Tensor) -> torch.Tensor:
    inner = lambda x: torch.cond(x.max() > 9, lambda x: x * 5, lambda x: x - 7, (x,))  # noqa: E731
    return torch.cond(x.sum() > 0, inner, lambda x: x.cos() * torch.arange(8), (x * 2,)) + 1  # type: ignore[no-any-return]


def repeat(x: torch.Tensor) -> torch.Tensor:
    while_loop = torch._higher_order_ops.while_loop
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 1.5), (torch.tensor(0), x))[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function, programs", [(branch, 5), (repeat, 3)])
def test_programs_with_subgraphs(function: Callable[..., Any], programs: int, dynamic: bool) -> None:
    inputs = (X.abs(), -X.abs(), X.abs() + 9)
    for expected in (0, programs):
        result, count = again(function, inputs[0], dynamic=dynamic)
        compiled = stator.compile(function, dynamic=dynamic)
        assert count == expected
        torch.testing.assert_close(result, function(inputs[0]))
        for x in inputs:
            torch.testing.assert_close(compiled(x), function(x))


def test_subgraphs_are_in_the_key() -> None:
    def choose(by: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * by, (x,))

    for by in (2.0, 3.0):
        again(choose(by), X.abs())
        torch.testing.assert_close(again(choose(by), -X.abs())[0], -X.abs() * by)


# ---- the key


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> fx.GraphModule:
    return trace(function, inputs, keep=can_lower).graph


def key(function: Callable[..., Any] = softmax_of_sum, *inputs: torch.Tensor, **chosen: Any) -> str:
    inputs = inputs or (X, Y)
    made = ProgramEntry(traced(function, *inputs), inputs, Options(**chosen)).key
    assert made is not None
    return made


def test_equal_graphs_have_one_key() -> None:
    assert key() == key()


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.randn(6, 9), torch.randn(6, 9)),
        (X.double(), Y.double()),
        (X.t().contiguous().t(), Y),
        (X, nn.Parameter(Y, requires_grad=False)),
    ],
    ids=["size", "dtype", "strides", "parameter"],
)
def test_inputs_are_in_the_key(inputs: tuple[torch.Tensor, ...]) -> None:
    assert key(softmax_of_sum, *inputs) != key()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x + 3 * y).softmax(-1),
        lambda x, y: (x + 2.0 * y).softmax(0),
        lambda x, y: (x - 2 * y).softmax(-1),
        lambda x, y: (y + 2 * x).softmax(-1),
        lambda x, y: ((x + 2 * y).softmax(-1), x + 2 * y),
        lambda x, y: (x + y * torch.tensor(2.0)).softmax(-1),
    ],
    ids=["number", "argument", "operator", "order", "results", "constant"],
)
def test_the_graph_is_in_the_key(function: Callable[..., Any]) -> None:
    assert key(function) != key()


def test_the_contents_of_constants_are_in_the_key() -> None:
    keys = {key(lambda x, y, by=by: x + y * torch.tensor(by)) for by in (2.0, -2.0, 0.0, -0.0, float("nan"))}
    assert len(keys) == 5


@pytest.mark.parametrize("name", ["given_strides", "mutated", "held", "free_layouts", "part", "another"])
def test_notes_on_the_graph_are_in_the_key(name: str) -> None:
    graph = traced(softmax_of_sum, X, Y)
    graph.meta[name] = [(0, 1)]
    assert ProgramEntry(graph, (X, Y), Options()).key not in (None, key())


@pytest.mark.parametrize(
    "changed",
    [dict(fusion=False), dict(vectorize=False), dict(exact_rounding=True), dict(mode="max-autotune")],
    ids=str,
)
def test_options_are_in_the_key(changed: dict[str, Any]) -> None:
    assert key(**changed) != key()


def _set(setter: Callable[[Any], Any], value: Any, before: Any) -> Callable[[], Callable[[], Any]]:
    def change() -> Callable[[], Any]:
        setter(value)
        return lambda: setter(before)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set(torch.set_num_threads, torch.get_num_threads() + 1, torch.get_num_threads()),
        _set(torch.use_deterministic_algorithms, True, False),
        _set(torch.set_float32_matmul_precision, "high", torch.get_float32_matmul_precision()),
        _set(torch._C._set_mkldnn_enabled, False, True),
        _set(torch.set_default_dtype, torch.float64, torch.float32),
        _set(lambda on: torch.set_autocast_enabled("cpu", on), True, False),
    ],
    ids=["threads", "deterministic", "precision", "onednn", "default dtype", "autocast"],
)
def test_settings_of_torch_are_in_the_key(change: Callable[[], Callable[[], Any]]) -> None:
    graph = traced(softmax_of_sum, X, Y)
    before = ProgramEntry(graph, (X, Y), Options()).key
    restore = change()
    try:
        after = ProgramEntry(graph, (X, Y), Options()).key
    finally:
        restore()
    assert None not in (before, after) and before != after


@pytest.mark.parametrize("note", sorted(identity._UNREAD - {"place", "peak"}))
def test_notes_that_are_not_in_the_key_are_never_read(note: str) -> None:
    """`place` is read for messages alone, and `peak` is a result."""
    floor = Path(stator.__file__).parent
    for path in (*(floor / "inductor").rglob("*.py"), *(floor / "graph" / "ir").glob("*.py"), floor / "pipeline.py"):
        reads = re.findall(rf"""meta(?:\.get\(|\[)["']{note}["']""", path.read_text())
        assert not reads, f"{path} reads a note that no key of a program has"


def test_a_library_s_operator_is_in_the_key_by_its_schema() -> None:
    names = []
    for schema in ("(Tensor x) -> Tensor", "(Tensor x, int by=1) -> Tensor"):
        with torch.library._scoped_library("program_cache_test", "DEF") as library:
            library.define(f"some{schema}")
            library.impl("some", torch.clone, "CPU")
            names.append(identity.text(torch.ops.program_cache_test.some.default))
    assert names[0] != names[1]


# ---- what is not kept


def test_a_changed_source_file_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program_cache._process.cache_clear()
    monkeypatch.setattr(program_cache, "IMPORTED_AT", 0.0)
    assert ProgramEntry(traced(softmax_of_sum, X, Y), (X, Y), Options()).key is None


def test_rules_of_the_program_keep_nothing() -> None:
    @extend.operator("program_cache_test::twice(Tensor x) -> Tensor", shape=lambda x: NotImplemented)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    assert extend.is_used
    assert ProgramEntry(traced(softmax_of_sum, X, Y), (X, Y), Options()).key is None


def test_choices_that_only_this_program_can_make_again_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(softmax_of_sum, X, Y)
    entry = ProgramEntry(graph, (X, Y), Options())
    choices.note_provisional()
    monkeypatch.setattr(program_cache, "_to_bytes", lambda *program: pytest.fail("stored"))
    entry.keep(None)  # type: ignore[arg-type]


def test_a_program_by_a_rule_serves_until_the_answer_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    original = pipeline._program_of

    def by_rule(*arguments: Any) -> Any:
        choices.note_provisional((os.getenv, ("STATOR_TEST_ANSWER",), os.getenv("STATOR_TEST_ANSWER")))
        return original(*arguments)

    monkeypatch.setattr(pipeline, "_program_of", by_rule)
    for chosen, programs in (("rule", 0), ("rule", 1), ("timed", 0), ("timed", 1)):
        monkeypatch.setenv("STATOR_TEST_ANSWER", chosen)
        assert again(softmax_of_sum, X, Y)[1] == programs


@pytest.mark.parametrize("chosen", [dict(program_cache=False), dict(verify=True)], ids=str)
def test_options_that_turn_the_cache_off(chosen: dict[str, Any]) -> None:
    for _ in range(2):
        assert again(softmax_of_sum, X, Y, options=chosen)[1] == 0


def test_dumps_show_all_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again(softmax_of_sum, X, Y)
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path / "dump"))
    assert again(softmax_of_sum, X, Y)[1] == 0
    assert list((tmp_path / "dump").glob("*/30_loops.txt")) and not dumps.active()


def test_explanations_look_at_all_stages() -> None:
    again(softmax_of_sum, X, Y)
    before = found()
    stator.explain(softmax_of_sum)(X, Y)
    assert found() == before


# ---- files


def test_tracebacks_show_the_lines_of_a_text_as_long_as_a_program_of_it_lives() -> None:
    text = "def bind(rt):\n    def call():\n        return ()\n    return call\n"
    programs = [execute(text, None), execute(text, None, compile_text(text))]  # type: ignore[arg-type]
    (name,) = {program.__code__.co_filename for program in programs}
    for _ in range(2):
        assert linecache.getline(name, 2) == "    def call():\n"
        programs.pop()
        gc.collect()
    assert name not in linecache.cache


def test_a_damaged_file_is_made_again(cache: Path) -> None:
    again(softmax_of_sum, X, Y)
    files = list(cache.glob("*/units/*.bin"))
    for file in files:
        file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    build.forget_loaded()
    result, count = again(softmax_of_sum, X, Y)
    torch.testing.assert_close(result, softmax_of_sum(X, Y))
    assert files and count == 0
    assert again(softmax_of_sum, X, Y)[1] == 1


PROCESS = """
import sys, torch, stator
from stator.base import counters
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.LayerNorm(300), torch.nn.GELU(), torch.nn.LayerNorm(300))  # nothing to time
x = torch.randn(3000, 300)
model(x).sum().backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
stator.compile(model)(x).sum().backward()
for parameter, gradient in zip(model.parameters(), expected):
    torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-2)
print(counters.counts["programs.found"], "lower" in counters.seconds, "triton" in sys.modules)

def choose(x):
    folded = torch.arange(3000)[:, None].float().sin().cos().exp().log1p().expand(3000, 300)
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - folded, (x * folded,))

with torch.no_grad():
    for x in (x, -x):
        torch.testing.assert_close(stator.compile(choose)(x), choose(x))
print(counters.counts["programs.found"], "lower" in counters.seconds, counters.counts["kernels.compiled"])
"""


def test_processes_share_programs_and_write_at_once() -> None:
    source = Path(stator.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROCESS]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    writers = [start(), start()]
    assert all(one.communicate(timeout=300)[0] and one.returncode == 0 for one in writers)
    last = start()
    assert last.communicate(timeout=300)[0].split() == ["2", "False", "False", "8", "False", "0"]
