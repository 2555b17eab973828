"""The control API: stances, assertions, disabling, allowed and constant functions; torch.compiler's equivalents."""

from __future__ import annotations

import _bisect
import asyncio
import binascii
import contextlib
import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.counting_backend import CountingBackend

import stator


def mode(x: torch.Tensor) -> torch.Tensor:
    """Tells compiled from eager: adds 1 when compiled, 10 eagerly."""
    return x + (1 if stator.is_compiling() else 10)


def compiled_mode() -> Callable[[torch.Tensor], torch.Tensor]:
    return stator.compile(lambda x: mode(x), backend="eager")


@pytest.fixture(autouse=True)
def default_stance() -> Iterator[None]:
    yield
    stator.set_stance("default")


X = torch.zeros(2)
Y = torch.zeros(3)


# ---- stances ----


def test_force_eager_as_a_block_a_decorator_and_a_statement() -> None:
    f = compiled_mode()
    assert f(X)[0] == 1
    with stator.set_stance("force_eager"):
        assert f(X)[0] == 10
        with stator.set_stance("default"):
            assert f(X)[0] == 1
        assert f(X)[0] == 10
    assert f(X)[0] == 1

    @stator.set_stance("force_eager")
    def eager() -> torch.Tensor:
        return f(X)

    assert f(X)[0] == 1 and eager()[0] == 10 and f(X)[0] == 1
    assert eager.__name__ == "eager"
    stator.set_stance("force_eager")
    assert f(X)[0] == 10
    stator.set_stance("default")
    assert f(X)[0] == 1


def test_force_eager_compiles_nothing() -> None:
    backend = CountingBackend()
    f = stator.compile(lambda x: mode(x), backend=backend)
    with stator.set_stance("force_eager"):
        assert f(X)[0] == 10
    assert not backend.graphs


@pytest.mark.fixed_sizes
def test_eager_on_recompile_uses_what_there_is() -> None:
    backend = CountingBackend()
    f = stator.compile(lambda x: mode(x), backend=backend)
    with stator.set_stance("eager_on_recompile"):
        assert f(X)[0] == 10
    assert f(X)[0] == 1
    with stator.set_stance("eager_on_recompile"):
        assert f(X)[0] == 1 and f(Y)[0] == 10 and f(X)[0] == 1
    assert len(backend.graphs) == 1
    assert f(Y)[0] == 1 and len(backend.graphs) == 2


@pytest.mark.fixed_sizes
def test_fail_on_recompile_says_which_guard_failed() -> None:
    f = compiled_mode()
    with (
        stator.set_stance("fail_on_recompile"),
        pytest.raises(stator.RecompileError, match="would have to be compiled"),
    ):
        f(X)
    assert f(X)[0] == 1
    with stator.set_stance("fail_on_recompile"):
        assert f(X)[0] == 1
        with pytest.raises(RuntimeError, match=r"x: tensor shape \[2\] became \[3\]"):
            f(Y)
    assert f(Y)[0] == 1


def test_an_unknown_stance_is_refused() -> None:
    with pytest.raises(stator.UsageError, match="known stances: default, force_eager"):
        stator.set_stance("fast")


def test_a_stance_survives_exceptions() -> None:
    f = compiled_mode()
    f(X)
    with pytest.raises(ZeroDivisionError), stator.set_stance("force_eager"):
        raise ZeroDivisionError
    assert f(X)[0] == 1


def test_a_stance_belongs_to_its_thread() -> None:
    f = compiled_mode()
    f(X)
    found: list[float] = []
    with stator.set_stance("force_eager"):
        thread = threading.Thread(target=lambda: found.append(f(X)[0].item()))
        thread.start()
        thread.join()
        assert f(X)[0] == 10
    assert found == [1]


def test_a_stance_belongs_to_its_task() -> None:
    f = compiled_mode()
    f(X)

    async def eager(entered: asyncio.Event, leave: asyncio.Event) -> float:
        with stator.set_stance("force_eager"):
            entered.set()
            await leave.wait()
            return f(X)[0].item()

    @stator.set_stance("force_eager")
    async def decorated() -> float:
        await asyncio.sleep(0)
        return f(X)[0].item()

    async def main() -> list[float]:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(eager(entered, leave))
        await entered.wait()
        here = f(X)[0].item()
        leave.set()
        return [here, await task, await decorated(), f(X)[0].item()]

    assert asyncio.run(main()) == [1, 10, 10, 1]


def test_a_stance_inside_captured_code_takes_effect_there() -> None:
    inner = compiled_mode()
    inner(X)

    def program(x: torch.Tensor) -> torch.Tensor:
        a = mode(x)
        with stator.set_stance("force_eager"):
            b = inner(x)
        return torch.stack([a, b])

    assert stator.compile(program, backend="eager")(X)[:, 0].tolist() == [1, 10]


# ---- assert_no_recompile ----


def test_assert_no_recompile_raises_with_old_and_new_value() -> None:
    f = stator.compile(lambda x, n: x * n, backend="eager")
    f(X, 2)
    with stator.assert_no_recompile():
        f(X, 2)
        f2 = compiled_mode()
        f2(X)  # compiled for the first time
    with pytest.raises(stator.RecompileError, match=r"n: 2 became 3") as caught, stator.assert_no_recompile():
        f(X, 3)
    assert "test_control.py" in caught.value.frame and len(caught.value.reasons) == 1
    assert f(X, 3).tolist() == [0, 0]


@pytest.mark.fixed_sizes
def test_assert_no_recompile_raises_at_the_end_when_the_program_caught_it() -> None:
    f = stator.compile(lambda x: x + 1, backend="eager")
    f(X)
    with (
        pytest.raises(stator.RecompileError, match="shape"),
        stator.assert_no_recompile(),
        contextlib.suppress(Exception),
    ):
        f(Y)


def test_assert_no_recompile_counts_each_instance_by_itself() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @stator.compile(backend="eager")
        def call(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    first, second = Scale(1.0), Scale(2.0)
    first.call(X)
    with stator.assert_no_recompile():
        second.call(X)
        first.call(X)
    with pytest.raises(stator.RecompileError), stator.assert_no_recompile():
        first.by = torch.ones(2)  # type: ignore[assignment]
        first.call(X)


def test_assert_no_recompile_as_a_decorator() -> None:
    f = stator.compile(lambda x, n: x * n, backend="eager")

    @stator.assert_no_recompile()
    def serve(n: int) -> torch.Tensor:
        """Serves."""
        return f(X, n)

    @stator.assert_no_recompile()
    async def served(n: int) -> torch.Tensor:
        return f(X, n)

    assert torch.equal(serve(2), X * 2) and torch.equal(asyncio.run(served(2)), X * 2) and serve.__doc__ == "Serves."
    with pytest.raises(stator.RecompileError, match="n: 2 became 3"):
        serve(3)
    with pytest.raises(stator.RecompileError):
        asyncio.run(served(3))
    assert torch.equal(serve(2), X * 2)  # each call is a block of its own
    assert torch.equal(f(X, 3), X * 3)  # outside of them it is compiled


def test_assert_no_recompile_as_a_decorator_in_captured_code() -> None:
    f = stator.compile(lambda x, n: x * n, backend="eager")

    @stator.assert_no_recompile()
    def serve(x: torch.Tensor, n: int) -> torch.Tensor:
        return f(x, n)

    outer = stator.compile(lambda x, n: serve(x + 1, n) + 1, backend="eager")
    assert torch.equal(outer(X, 2), (X + 1) * 2 + 1)
    with pytest.raises(stator.RecompileError):
        outer(X, 3)


def test_what_decorates_functions_refuses_anything_else() -> None:
    for decorate in (stator.assert_no_recompile(), stator.set_stance()):
        with pytest.raises(stator.UsageError, match="takes a function, not int"):
            decorate(3)


# ---- disable ----


def test_disable_takes_functions_methods_and_reasons() -> None:
    @stator.disable(reason="counts calls")
    def outside(x: torch.Tensor) -> torch.Tensor:
        return mode(x)

    f = stator.compile(lambda x: outside(x) + 100, backend="eager")
    assert f(X)[0] == 110 and outside.__name__ == "outside"
    with pytest.raises(stator.Unsupported, match=r"disabled.*\n?.*counts calls|counts calls"):
        stator.compile(lambda x: outside(x), backend="eager", fullgraph=True)(X)

    class Thing:
        @stator.disable
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return mode(x)

        def other(self, x: torch.Tensor) -> torch.Tensor:
            return mode(x)

    thing = Thing()
    assert stator.compile(lambda x: thing.method(x), backend="eager")(X)[0] == 10
    bound = stator.disable(thing.other)
    assert stator.compile(lambda x: bound(x), backend="eager")(X)[0] == 10
    assert stator.compile(lambda x: thing.other(x), backend="eager")(X)[0] == 1


def test_disable_is_recursive_unless_told_otherwise() -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        own = 1 if stator.is_compiling() else 10
        return x + own + mode(x) * 100

    recursive, frame = stator.disable(both), stator.disable(_copy_of(both), recursive=False)
    assert stator.compile(lambda x: recursive(x), backend="eager")(X)[0] == 1010
    assert stator.compile(lambda x: frame(x), backend="eager")(X)[0] == 110
    assert stator.compile(frame, backend="eager")(X)[0] == 110
    assert stator.compile(recursive, backend="eager")(X)[0] == 1010


def _copy_of(function: Any) -> Any:
    return type(function)(
        function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__
    )


def test_a_disabled_class_stays_the_class() -> None:
    @stator.disable
    class Thing:
        def __init__(self, x: torch.Tensor) -> None:
            self.made = mode(x)

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return self.made + mode(x) * 100

    assert isinstance(Thing, type)
    assert stator.compile(lambda x: Thing(x)(x), backend="eager")(X)[0] == 1010


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mode(self.inner(x))


def test_a_disabled_module_runs_eagerly_also_when_copied() -> None:
    module = stator.disable(Net())
    assert isinstance(module, Net)
    expected = module.inner(X) + 10
    assert torch.equal(stator.compile(lambda x: module(x), backend="eager")(X), expected)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.inner.weight.zero_()
        twin.inner.bias.fill_(5)
    assert torch.equal(module(X), expected)
    assert twin(X).tolist() == [15, 15]
    assert list(inspect.signature(module.forward).parameters) == ["x"]


def test_disabled_coroutines_and_generators_keep_their_kind() -> None:
    f = compiled_mode()
    f(X)

    @stator.disable
    async def coroutine() -> float:
        await asyncio.sleep(0)
        return f(X)[0].item()

    @stator.disable
    def generator() -> Iterator[float]:
        got = yield f(X)[0].item()
        try:
            yield got + f(X)[0].item()
        except KeyError:
            yield -1
        return

    @stator.disable
    async def items() -> Any:
        yield f(X)[0].item()

    assert inspect.iscoroutinefunction(coroutine) and inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(items)

    async def main() -> list[float]:
        return [await coroutine(), f(X)[0].item(), *[item async for item in items()]]

    assert asyncio.run(main()) == [10, 1, 10]
    steps = generator()
    assert next(steps) == 10 and f(X)[0] == 1
    assert steps.send(5) == 15 and steps.throw(KeyError()) == -1
    assert list(steps) == []


def test_a_disabled_asynchronous_generator_is_sent_values_and_exceptions() -> None:
    f = compiled_mode()
    f(X)
    ended: list[float] = []

    @stator.disable
    async def items() -> Any:
        try:
            got = yield f(X)[0].item()
            try:
                yield got + f(X)[0].item()
            except KeyError:
                yield -1
        finally:
            ended.append(f(X)[0].item())

    async def main() -> list[float]:
        steps = items()
        found = [await anext(steps), await steps.asend(5), await steps.athrow(KeyError()), f(X)[0].item()]
        await steps.aclose()
        return found

    assert asyncio.run(main()) == [10, 15, -1, 1]
    assert ended == [10]


# ---- graph_break ----


def test_graph_break_splits_and_does_nothing_eagerly() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        stator.graph_break("here")
        return y * 2

    assert program(X).tolist() == [2, 2]
    backend = CountingBackend()
    assert stator.compile(program, backend=backend)(X).tolist() == [2, 2]
    assert len(backend.graphs) == 2
    with pytest.raises(stator.Unsupported, match="graph break: here"):
        stator.compile(program, backend="eager", fullgraph=True)(X)
    assert stator.explain(program)(X).break_reasons[0].kind == "requested"


# ---- allow_in_graph ----


def test_allowed_functions_are_one_operation() -> None:
    def opaque(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not inspect.currentframe():  # capture could not follow this
            return x, x
        return x + n, x * n

    stator.allow_in_graph(opaque)
    for chosen in ("eager", "aot_eager", "inductor"):
        backend = CountingBackend()
        if chosen == "eager":
            f = stator.compile(lambda x: sum(opaque(x + 1, 3)), backend=backend, fullgraph=True)
        else:
            f = stator.compile(lambda x: sum(opaque(x + 1, 3)), backend=chosen, fullgraph=True)
        x = torch.randn(5)
        torch.testing.assert_close(f(x), (x + 1 + 3) + (x + 1) * 3)
        assert chosen != "eager" or opaque in backend.targets()


def test_allowed_functions_are_differentiated_through() -> None:
    @stator.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if inspect.currentframe() else x

    x = torch.randn(4, requires_grad=True)
    stator.compile(lambda x: (opaque(x) * 2).sum(), fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_several_functions_are_allowed_at_once_and_wrong_things_refused() -> None:
    functions = [lambda x: x + 1, lambda x: x + 2]
    assert stator.allow_in_graph(functions) == functions
    backend = CountingBackend()
    assert stator.compile(lambda x: functions[1](x), backend=backend)(X).tolist() == [2, 2]
    assert backend.targets() == [functions[1]]
    with pytest.raises(stator.UsageError, match="takes a function, not int"):
        stator.allow_in_graph(3)


class Scaled(NamedTuple):
    values: torch.Tensor
    factor: float


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_an_allowed_function_gets_named_tuples(backend: str) -> None:
    @stator.allow_in_graph
    def scaled(given: Scaled) -> torch.Tensor:
        return given.values * given.factor

    compiled = stator.compile(lambda x: scaled(Scaled(x + 1, 2.0)), backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_what_gives_no_tensor_is_not_allowed() -> None:
    calls = []

    @stator.allow_in_graph
    def note(x: torch.Tensor) -> int:
        calls.append(isinstance(x, torch.Tensor))
        return 5

    f = stator.compile(lambda x: x * note(x + 1), backend="eager")
    assert f(X).tolist() == [0, 0] and f(X + 1).tolist() == [5, 5]
    with pytest.raises(stator.Unsupported, match="gave no tensor"):
        stator.compile(lambda x: x * note(x + 1), backend="eager", fullgraph=True)(X)


# ---- assume_constant_result ----


def test_a_constant_result_is_asked_for_once() -> None:
    calls = []

    @stator.assume_constant_result
    def factor(name: str) -> float:
        calls.append(name)
        with open(__file__) as file:  # nothing that capture could follow
            return float(len(file.readline()) > 0) + 2

    f = stator.compile(lambda x: x * factor("a"), backend="eager", fullgraph=True)
    assert f(X + 1).tolist() == [3, 3] and f(X + 2).tolist() == [6, 6]
    assert calls == ["a"]


def test_a_constant_method_relies_on_its_object() -> None:
    class Config:
        def __init__(self, n: int) -> None:
            self.n = n

        @stator.assume_constant_result
        def size(self) -> int:
            return self.n + len(str(id(self))) * 0

    f = stator.compile(lambda x, config: x + config.size(), backend="eager", fullgraph=True)
    assert f(X, Config(1))[0] == 1 and f(X, Config(2))[0] == 2


def test_a_constant_tensor_may_be_the_result() -> None:
    table = torch.arange(2.0)

    @stator.assume_constant_result
    def weights() -> torch.Tensor:
        return table if inspect.currentframe() else None  # type: ignore[return-value]

    f = stator.compile(lambda x: x + weights(), backend="eager", fullgraph=True)
    assert f(X).tolist() == [0, 1]


def test_a_constant_result_of_changed_objects_or_tensors_is_not_taken() -> None:
    @stator.assume_constant_result
    def total(items: list[int]) -> int:
        return sum(items) if inspect.currentframe() else 0

    def program(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        items.append(5)
        return x + total(items)

    assert stator.compile(program, backend="eager")(X, [1])[0] == 6
    with pytest.raises(stator.Unsupported, match="not-constant"):
        stator.compile(program, backend="eager", fullgraph=True)(X, [1])


# ---- substitute_in_graph ----


def test_a_substitute_is_followed_in_place_of_a_c_function() -> None:
    original = _bisect.insort_left

    @stator.substitute_in_graph(original, skip_signature_check=True)
    def insort(a: list[int], x: int, lo: int = 0, hi: int | None = None) -> None:
        at = 0
        while at < len(a) and a[at] < x:
            at += 1
        a.insert(at, x)

    def program(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        original(items, 2)
        return x + items[1]

    items = [1, 3]
    assert stator.compile(program, backend="eager", fullgraph=True)(X, items)[0] == 2
    assert items == [1, 2, 3]
    insort(items, 0)  # calls the original
    assert items == [0, 1, 2, 3]


def test_a_substitute_must_have_the_signature() -> None:
    def original(a: int, b: int = 2) -> int:
        return a

    with pytest.raises(stator.UsageError, match="skip_signature_check"):
        stator.substitute_in_graph(original)(lambda a: a)
    stator.substitute_in_graph(original, skip_signature_check=True)(lambda a: a + 1)
    assert stator.compile(lambda x: x + original(1), backend="eager")(X)[0] == 2


def test_a_substitute_may_be_folded_through() -> None:
    def original(a: int) -> int:
        return a + 1

    @stator.substitute_in_graph(original, can_constant_fold_through=True)
    def substitute(a: int) -> int:
        raise AssertionError("not followed on constants")

    assert stator.compile(lambda x: x + original(1), backend="eager", fullgraph=True)(X)[0] == 2


# ---- guard filters ----


@pytest.mark.fixed_sizes
def test_a_guard_filter_drops_guards() -> None:
    seen: list[Any] = []

    def keep_tensors(records: list[Any]) -> list[bool]:
        seen.extend(records)
        return [record.guard_type == "TENSOR_MATCH" for record in records]

    backend = CountingBackend()
    config = {"scale": 2.0}
    f = stator.compile(lambda x: x * config["scale"], backend=backend, options={"guard_filter_fn": keep_tensors})
    assert f(X + 1)[0] == 2
    config["scale"] = 3.0
    assert f(X + 1)[0] == 2  # nothing watches it any more
    assert f(Y + 1)[0] == 3 and len(backend.graphs) == 2  # but tensors are still watched
    names = {record.name for record in seen}
    assert "x" in names and any("config" in name for name in names)
    record = next(record for record in seen if record.name == "x")
    assert record.has_value and torch.equal(record.value, X + 1) and not record.is_global


def test_filters_of_torch_compiler_work() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
            self.by = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.by

    for filter_name in (
        "keep_tensor_guards_unsafe",
        "skip_all_guards_unsafe",
        "skip_guard_on_globals_unsafe",
        "skip_guard_on_inbuilt_nn_modules_unsafe",
        "skip_guard_on_all_nn_modules_unsafe",
        "keep_portable_guards_unsafe",
    ):
        chosen = getattr(torch.compiler, filter_name, None)
        if chosen is None:
            continue
        model = Model()
        compiled = stator.compile(model, backend="eager", options={"guard_filter_fn": chosen})
        x = torch.randn(3, 2)
        assert torch.equal(compiled(x), model(x))
        model.by = 5.0
        kept = filter_name in ("skip_guard_on_globals_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe")
        assert torch.equal(compiled(x), model(x)) is kept, filter_name


def test_a_filter_that_gives_something_else_is_named() -> None:
    f = stator.compile(
        lambda x: x + 1, backend="eager", fullgraph=True, options={"guard_filter_fn": lambda records: [True]}
    )
    with pytest.raises(stator.UsageError, match="guard_filter_fn"):
        f(X)
    with pytest.raises(stator.UsageError, match="guard_filter_fn"):
        stator.compile(lambda x: x, options={"guard_filter_fn": 3})


def test_a_filter_that_gives_something_else_is_no_defect_of_the_compiler() -> None:
    f = stator.compile(lambda x: x + 1, backend="eager", options={"guard_filter_fn": lambda records: [True]})
    with pytest.warns(RuntimeWarning, match=r"what it was given.*one bool for each"):
        assert torch.equal(f(X), X + 1)


# ---- recompile limits ----


def test_instances_do_not_share_a_limit() -> None:
    class Layer(torch.nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.n = n

        @stator.compile(backend="eager")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mode(x) + self.n * 100

    layers = [Layer(n) for n in range(40)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert [layer(X)[0].item() for layer in layers] == [n * 100 + 1 for n in range(40)]


def test_one_instance_that_changes_forever_runs_eagerly_and_leaves_the_others_compiled() -> None:
    class Layer:
        n = 0

        @stator.compile(backend="eager")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return mode(x) + self.n * 100

    changing, steady = Layer(), Layer()
    assert steady.forward(X)[0] == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(1, 20):
            changing.n = n
            changing.forward(X)
    assert len([w for w in caught if "recompile_limit" in str(w.message)]) <= 1
    changing.n = 100
    assert steady.forward(X)[0] == 1


# ---- marks of torch.compiler in libraries ----


@pytest.fixture(scope="module")
def dynamo() -> Any:
    return pytest.importorskip("torch._dynamo")


def test_questions_are_answered() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        answers = [
            torch.compiler.is_compiling(),
            torch.compiler.is_dynamo_compiling(),
            torch.compiler.is_exporting(),
            torch.jit.is_scripting(),
            stator.is_compiling(),
        ]
        return x + sum(2**k for k, answer in enumerate(answers) if answer)

    assert program(X)[0] == 0
    assert stator.compile(program, backend="eager", fullgraph=True)(X)[0] == 1 + 2 + 16


def test_other_names_of_the_question(dynamo: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        answers = [
            torch._dynamo.is_compiling(),
            torch._utils.is_compiling(),
            torch._dynamo.external_utils.is_compiling(),
        ]
        return x + sum(answers)

    assert stator.compile(program, backend="eager", fullgraph=True)(X)[0] == 3 and program(X)[0] == 0


def kept_out(x: torch.Tensor) -> torch.Tensor:
    """It lives as long as the process: torch's table of such functions holds ids, which outlive a function."""
    return mode(x)


def test_functions_that_torch_was_told_to_keep_out(dynamo: Any) -> None:
    @torch._dynamo.forbid_in_graph
    def forbidden(x: torch.Tensor) -> torch.Tensor:
        return mode(x)

    torch._dynamo.disallow_in_graph(torch._dynamo.allow_in_graph(kept_out))
    for function in (forbidden, kept_out):
        with pytest.raises(stator.Unsupported, match="disabled"):
            stator.compile(lambda x, f=function: f(x), backend="eager", fullgraph=True)(X)


def test_marks_of_torch_compiler_are_obeyed(dynamo: Any) -> None:
    @torch.compiler.disable(reason="not now")
    def disabled(x: torch.Tensor) -> torch.Tensor:
        return mode(x)

    @torch.compiler.disable(recursive=False)
    def frame(x: torch.Tensor) -> torch.Tensor:
        return x + (1 if stator.is_compiling() else 10) + mode(x) * 100

    @torch.compiler.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if inspect.currentframe() else x

    @torch.compiler.assume_constant_result
    def constant() -> int:
        return 7 if inspect.currentframe() else 0

    @torch.compiler.nested_compile_region
    def region(x: torch.Tensor) -> torch.Tensor:
        return mode(x)

    def advised(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        torch._dynamo.mark_dynamic(x, 0)
        return mode(x)

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = mode(x)
        torch._dynamo.graph_break()
        return mode(y)

    assert stator.compile(lambda x: disabled(x), backend="eager")(X)[0] == 10
    with pytest.raises(stator.Unsupported, match="not now"):
        stator.compile(lambda x: disabled(x), backend="eager", fullgraph=True)(X)
    assert stator.compile(lambda x: frame(x), backend="eager")(X)[0] == 110
    backend = CountingBackend()
    assert stator.compile(lambda x: opaque(x), backend=backend, fullgraph=True)(X)[0] == 1
    assert opaque in backend.targets()
    assert stator.compile(lambda x: x + constant(), backend="eager", fullgraph=True)(X)[0] == 7
    assert stator.compile(lambda x: region(x), backend="eager", fullgraph=True)(X)[0] == 1
    assert stator.compile(advised, backend="eager", fullgraph=True)(X)[0] == 1
    assert stator.compile(broken, backend="eager")(X)[0] == 2
    with pytest.raises(stator.Unsupported, match="requested"):
        stator.compile(broken, backend="eager", fullgraph=True)(X)


def test_substitutes_of_torch_compiler_are_followed(dynamo: Any) -> None:
    @torch.compiler.substitute_in_graph(binascii.crc_hqx, skip_signature_check=True)
    def substitute(data: bytes, n: int) -> int:
        return n * 2

    assert stator.compile(lambda x: x + binascii.crc_hqx(b"", 4), backend="eager", fullgraph=True)(X)[0] == 8


def test_torch_stances_inside_captured_code_are_left_to_torch(dynamo: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        with torch.compiler.set_stance("force_eager"):
            z = y * 2
        return z + 1

    assert stator.compile(program, backend="eager")(X).tolist() == [3, 3]
