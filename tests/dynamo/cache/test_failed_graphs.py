"""A graph that raises while it runs: the program sees what it would see in eager, effects, handlers, lines and all."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import signal
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import stator
from stator.base import counters
from stator.base.errors import CompileError

BACKENDS = ["eager", "inductor"]
GOOD, BAD = torch.eye(2), -torch.eye(2)
TABLE = torch.arange(12.0).reshape(4, 3)
INSIDE, OUTSIDE = torch.tensor([1, 3]), torch.tensor([1, 9])


def failed() -> int:
    return counters.counts["dynamo.failed_graphs"]


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives, or the error it raises with the lines of this file that led there."""
    try:
        return "gives", call()
    except Exception as error:
        lines = [frame.line for frame in traceback.extract_tb(error.__traceback__)[1:] if frame.filename == __file__]
        context = None if error.__context__ is None else repr(error.__context__)
        notes = getattr(error, "__notes__", None)
        return "raises", (
            type(error),
            str(error),
            [line for line in lines if line and "lambda" not in line],
            context,
            notes,
        )


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted


def check(program: Any, calls: list[tuple[Any, ...]], backend: str = "eager", fullgraph: bool = False) -> None:
    """Calls of the compiled program with fresh logs do what the program does; all fail at least once, in a graph."""
    compiled, before = stator.compile(program, backend=backend, fullgraph=fullgraph), failed()
    for arguments in calls:
        logs: tuple[list[Any], list[Any]] = ([], [])
        wanted = outcome(lambda arguments=arguments, log=logs[0]: program(*arguments, log))  # type: ignore[misc]
        found = outcome(lambda arguments=arguments, log=logs[1]: compiled(*arguments, log))  # type: ignore[misc]
        assert found[0] == wanted[0], (found, wanted)
        if wanted[0] == "raises":
            assert repr(found[1]) == repr(wanted[1])
        else:
            torch.testing.assert_close(found[1], wanted[1], rtol=1e-6, atol=1e-6)
        assert_same(logs[1], logs[0])
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
    assert failed() > before


# ---- programs ----


def an_index(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    log.append("before")
    y = x[i] * 2
    log.append("behind")
    return y + 1


def caught_index(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    log.append(x.sum())
    try:
        y = torch.nn.functional.embedding(i, x)
        log.append("found")
    except IndexError as error:
        log.append(str(error))
        y = x * 0
    finally:
        log.append("finally")
    return y + 1


def in_nested_functions(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    total = [0]

    def look(up: torch.Tensor) -> torch.Tensor:
        total[0] += 1
        return up.index_select(0, i)

    def around(up: torch.Tensor) -> torch.Tensor:
        try:
            return look(up) + 1
        except IndexError:
            log.append(total[0])
            raise

    try:
        return around(x * 2)
    except IndexError as error:
        log.append(type(error))
        return around(x.repeat(4, 1))


def modes_inside(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        y = (x @ x.T)[i]
        log.append(torch.is_grad_enabled())
    return y.float()


def in_a_loop_with_breaks(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    for turn in range(5):
        log.append(turn)
        x = x + turn
        if x.sum() > 1e9:
            break
        try:
            y = x[i + turn]
        except IndexError:
            log.append("outside")
            continue
        x = x + y.sum()
        log.append(x)
    return x


def in_a_handler(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    try:
        raise ValueError("first")
    except ValueError:
        stator.graph_break()
        x = x * 2
        log.append("handling")
        return x[i] + 1


def fails_behind_a_break(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    scale, note = 2, "note"
    x = x * scale
    stator.graph_break()
    log.append(note)
    total = [x[i].sum() for _ in range(scale)]
    log.append(len(total))
    return total[0] + x


PROGRAMS = [
    an_index,
    caught_index,
    in_nested_functions,
    modes_inside,
    in_a_loop_with_breaks,
    in_a_handler,
    fails_behind_a_break,
]
CALLS = [(TABLE, INSIDE), (TABLE, OUTSIDE), (TABLE, INSIDE), (TABLE, OUTSIDE)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_program_sees_what_eager_shows(program: Any) -> None:
    check(program, CALLS)


@pytest.mark.parametrize("program", [an_index, caught_index, modes_inside, in_a_loop_with_breaks])
def test_kernels_that_fail_are_no_other(program: Any) -> None:
    check(program, CALLS[:2], "inductor")


@pytest.mark.parametrize("program", [caught_index, in_nested_functions])
def test_one_whole_graph(program: Any) -> None:
    check(program, CALLS, fullgraph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_flow_behind_a_failure(backend: str) -> None:
    def program(weight: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        try:
            return (weight[i] * weight[0]).sum()
        except IndexError:
            return (weight * 3).sum()

    compiled = stator.compile(program, backend=backend)
    for i in (INSIDE, OUTSIDE, INSIDE):
        gradients = []
        for run in (program, compiled):
            weight = TABLE.clone().requires_grad_()
            run(weight, i).backward()
            gradients.append(weight.grad)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-6)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(4, 3)
        self.calls = 0

    def forward(self, i: torch.Tensor, *, scale: float = 1.0, **more: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = i.float().mean()
        found = self.embedding(i) * scale + sum(more.values())
        self.done = self.calls
        return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_attributes_that_were_set_before(backend: str) -> None:
    model = Model()
    compiled = stator.compile(model, backend=backend)
    compiled(INSIDE, scale=2.0, bias=torch.ones(3))
    with pytest.raises(IndexError):
        compiled(OUTSIDE, scale=2.0, bias=torch.ones(3))
    assert (model.calls, model.done) == (2, 1)
    assert model.last == OUTSIDE.float().mean()
    torch.testing.assert_close(
        compiled(INSIDE, scale=2.0, bias=torch.ones(3)), Model.forward(model, INSIDE, scale=2.0, bias=torch.ones(3))
    )


def test_all_kinds_of_parameters_and_cells() -> None:
    outer = TABLE * 2

    def program(x, /, i, *rest, scale=2, **named):  # type: ignore[no-untyped-def]
        def inner() -> torch.Tensor:
            return (x + outer)[i] * scale

        rest[0].append(sorted(named))
        return inner() + rest[1]

    compiled = stator.compile(program, backend="eager")
    for i in (INSIDE, OUTSIDE, INSIDE):
        logs: tuple[list[Any], list[Any]] = ([], [])
        found = [
            outcome(lambda run=run, log=log: run(TABLE, i, log, 1.0, scale=3, a=1, b=2))  # type: ignore[misc]
            for run, log in zip((program, compiled), logs, strict=True)
        ]
        assert repr(found[1]) == repr(found[0])
        assert logs[0] == logs[1] == [["a", "b"]]


def test_frames_that_only_the_hook_sees() -> None:
    def callee(x: torch.Tensor, i: torch.Tensor, *, log: list[Any]) -> torch.Tensor:
        log.append("callee")
        if x.sum() < -1e9:
            return x
        log.append("goes on")
        return x[i] + 1

    def program(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
        try:
            return callee(x * 2, i, log=log)
        except IndexError:
            return x - 1

    check(program, CALLS)


def test_grad_mode_that_the_graph_had_switched() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.linalg.cholesky(x)

    compiled = stator.compile(program, backend="eager")
    compiled(GOOD)
    with pytest.raises(RuntimeError):
        compiled(BAD)
    assert torch.is_grad_enabled()


def test_nothing_is_chained_and_nothing_kept() -> None:
    class Log(list[Any]):
        pass

    compiled, log = stator.compile(an_index, backend="eager"), Log()
    compiled(TABLE, INSIDE, log)
    with pytest.raises(IndexError) as raised:
        compiled(TABLE, OUTSIDE, log)
    assert raised.value.__context__ is None
    assert raised.value.__cause__ is None
    assert [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)] == [
        "test_nothing_is_chained_and_nothing_kept",
        "an_index",
    ]
    gone = weakref.ref(log)
    del log, raised
    gc.collect()
    assert gone() is None


# ---- random numbers ----


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_once(backend: str) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(4, 3)
        try:
            return (x + noise)[i]
        except IndexError:
            return x + noise + torch.rand(4, 3)

    compiled = stator.compile(program, backend=backend, options={"exact_random": True})
    for i in (INSIDE, OUTSIDE, INSIDE):
        found = []
        for run in (program, compiled):
            torch.manual_seed(7)
            found.append((run(TABLE, i), torch.rand(2)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("generator", [random, random.Random(3), numpy.random, numpy.random.RandomState(3)])
def test_numbers_drawn_ahead_of_the_graph_are_drawn_once(generator: Any) -> None:
    def program(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
        log.append("before")
        x = x * generator.random()
        log.append("between")
        x = x[i] * generator.random()
        log.append("behind")
        return x

    compiled = stator.compile(program, backend="eager")
    before = failed()
    for i in (INSIDE, OUTSIDE, INSIDE):
        found = []
        for run in (program, compiled):
            log: list[Any] = []
            generator.seed(5)
            result = outcome(lambda run=run, log=log: run(TABLE, i, log))  # type: ignore[misc]
            found.append((repr(result), log, generator.random()))
        assert_same(found[1], found[0])
    assert failed() > before


# ---- what is no failure of the graph, or one that comes once ----


@pytest.mark.graphs_may_fail_alone
def test_an_error_that_comes_once_is_a_warning() -> None:
    failures: list[int] = []

    @torch.library.custom_op("stator_tests_failed::flaky", mutates_args=())
    def flaky(x: torch.Tensor) -> torch.Tensor:
        if failures.pop():
            raise ValueError("this time")
        return x + 1

    flaky.register_fake(lambda x: torch.empty_like(x))

    def program(x: torch.Tensor) -> torch.Tensor:
        return flaky(x) * 2

    compiled = stator.compile(program, backend="eager")
    failures = [0, 0, 1, 0]
    assert torch.equal(compiled(GOOD), (GOOD + 1) * 2)
    with pytest.warns(RuntimeWarning, match="did not raise: ValueError: this time"):
        assert torch.equal(compiled(GOOD), (GOOD + 1) * 2)
    assert torch.equal(compiled(GOOD), (GOOD + 1) * 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_the_program_s_own_operator(backend: str) -> None:
    @torch.library.custom_op(f"stator_tests_failed::strict_{backend}", mutates_args=())
    def strict(x: torch.Tensor) -> torch.Tensor:
        if x.sum() < 0:
            raise KeyError("negative")
        return x + 1

    strict.register_fake(lambda x: torch.empty_like(x))

    def program(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
        try:
            return strict(x * 2) * 2
        except KeyError as error:
            log.append(error.args)
            return x

    check(program, [(GOOD,), (BAD,)], backend)


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Interrupted])
def test_interrupts_leave_at_once_with_modes_put_back(kind: type[BaseException]) -> None:
    raises: list[type[BaseException]] = []

    @torch.library.custom_op(f"stator_tests_failed::{kind.__name__.lower()}", mutates_args=())
    def stops(x: torch.Tensor) -> torch.Tensor:
        if raises:
            raise raises.pop()
        return x + 1

    stops.register_fake(lambda x: torch.empty_like(x))

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return stops(x) * 2

    compiled, before = stator.compile(program, backend="eager"), failed()
    compiled(GOOD)
    raises.append(kind)
    with pytest.raises(kind):
        compiled(GOOD)
    assert torch.is_grad_enabled()
    assert failed() == before


class Late(Exception):
    pass


def test_what_a_handler_of_signals_raises_is_not_swallowed() -> None:
    def too_late(number: int, frame: Any) -> None:
        raise Late

    armed: list[bool] = []

    @torch.library.custom_op("stator_tests_failed::slow", mutates_args=())
    def slow(x: torch.Tensor) -> torch.Tensor:
        if armed and armed.pop():
            signal.raise_signal(signal.SIGUSR1)
        return x + 1

    slow.register_fake(lambda x: torch.empty_like(x))

    def program(x: torch.Tensor) -> torch.Tensor:
        return slow(x) * 2

    compiled = stator.compile(program, backend="eager")
    compiled(GOOD)
    before = signal.signal(signal.SIGUSR1, too_late)
    try:
        armed.append(True)
        with pytest.raises(Late):
            compiled(GOOD)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_hooks_for_what_is_saved_are_called_once() -> None:
    saved: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved.append(x.numel())
        if len(saved) == 3:
            raise Late
        return x

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos().exp()

    compiled = stator.compile(program, backend="eager")
    x = torch.ones(2, requires_grad=True)
    for run in (program, compiled):
        saved.clear()
        with pytest.raises(Late), torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            run(x)
        assert saved == [2, 2, 2]


def test_threads_fail_by_themselves() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            try:
                return x[i] + 1
            except IndexError:
                return x - 1

    compiled = stator.compile(program, backend="eager")
    compiled(TABLE, INSIDE)
    wrong: list[Any] = []

    def work(i: torch.Tensor) -> None:
        for _ in range(100):
            if not torch.equal(compiled(TABLE, i), program(TABLE, i)) or not torch.is_grad_enabled():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in (INSIDE, OUTSIDE, INSIDE, OUTSIDE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_error_of_stator_is_said_once() -> None:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            raise CompileError("codegen", "too late")

        return run

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return x + 1
        except RuntimeError:
            return x

    compiled = stator.compile(program, backend=backend)
    with pytest.warns(RuntimeWarning, match="could not be run.*too late"):
        assert torch.equal(compiled(GOOD), GOOD + 1)
    assert torch.equal(compiled(GOOD), GOOD + 1)


# ---- graphs that change what was there before ----


def test_a_graph_that_writes_is_not_run_twice() -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x.add_(1)
            return x[i]

    compiled, before = stator.compile(program, backend="eager"), failed()
    x = torch.zeros(3)
    compiled(x, torch.tensor([1]))
    with pytest.raises(IndexError) as raised:
        compiled(x, torch.tensor([5]))
    assert torch.equal(x, torch.full((3,), 2.0))
    assert torch.is_grad_enabled()
    assert failed() == before
    (note,) = raised.value.__notes__
    assert "return x[i]" in note


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_are_not_written_twice(backend: str) -> None:
    """A graph that fails may have written some of them, or none; one that runs operator by operator has written those
    from before the error."""

    def program(model: torch.nn.Module, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        try:
            x = model(x)
        finally:
            x = x + 1
        return x[i]

    x, model = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.nn.BatchNorm1d(3)
    twin = torch.nn.BatchNorm1d(3)
    compiled = stator.compile(program, backend=backend)
    compiled(model, x, INSIDE), program(twin, x, INSIDE)
    once = copy.deepcopy(twin.state_dict())
    for run, which in ((compiled, model), (program, twin)):
        with pytest.raises(IndexError):
            run(which, x, OUTSIDE)
    for name, found in model.state_dict().items():
        before, behind = ((found - state[name]).abs().max() < 1e-5 for state in (once, twin.state_dict()))
        assert behind or (before and backend != "eager")


def writes_before(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError:
        log.append("caught")
        return x + 1


def writes_behind(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    try:
        y = torch.linalg.cholesky(x)
    except RuntimeError:
        log.append("caught")
        y = x + 1
    x.mul_(2)
    return y


def writes_to_a_part(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    try:
        y = torch.linalg.cholesky(x)
        x[0, 1] = y.sum()
    except RuntimeError:
        log.append("caught")
        y = x + 1
    return y


def writes_to_its_own(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    y = x + 0
    y[0, 1] = 0
    try:
        y.copy_(torch.linalg.cholesky(y))
    except RuntimeError:
        log.append("caught")
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [writes_before, writes_behind, writes_to_a_part, writes_to_its_own])
def test_handlers_around_operators_of_graphs_that_write(program: Any, backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for start in (GOOD, BAD, GOOD, BAD):
        results = []
        for run in (program, compiled):
            x, log = start.clone(), list[Any]()
            results.append((run(x, log), x, log))
        assert_same(results[1], results[0])


def indexes_behind_a_write(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        return x[i] + 1
    except ValueError:
        raise
    except (KeyError, IndexError) as error:
        log.append(str(error))
        return x + 1


def writes_at_indices(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    try:
        x[i] = 3.0
    except LookupError:
        log.append("caught")
    return x + 1


def looks_up_inside_of_a_call(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    def rows() -> torch.Tensor:
        return torch.nn.functional.embedding(i, x)

    try:
        y = rows()
        x.add_(1)
    except IndexError:
        log.append("caught")
        y = x + 1
    return y


def handles_any_error(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        return x[i] + 1
    except Exception as error:
        log.append(str(error))
        return x + 1


def raises_another_error(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        try:
            return x[i] + 1
        except:  # noqa: E722
            log.append("caught")
            raise ValueError from None
    except ValueError:
        return x


SOME_ERRORS = (KeyError, IndexError)


def names_errors_in_a_global(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    for _ in range(2):
        try:
            x.add_(1)
            x[i] = 7.0
        except SOME_ERRORS:
            log.append("caught")
    return x + 1


def suppresses_wrong_indices(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    with contextlib.suppress(IndexError):
        return x[i] + 1
    return x - 1


@contextlib.contextmanager
def noted(log: list[Any]) -> Any:
    try:
        yield
    except IndexError:
        log.append("caught")


def handles_in_a_context_manager(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    y = x + 0
    with noted(log):
        y = x[i] + 1
    return y


def handles_in_an_exit_stack(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(IndexError))
        return x[i] + 1
    return x - 1


def gathers(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        return x.gather(0, i.view(1, -1))
    except RuntimeError:
        log.append("caught")
        return x + 1


def divides_integers(x: torch.Tensor, i: torch.Tensor, log: list[Any]) -> torch.Tensor:
    x.mul_(2)
    try:
        return 7 // (i - OUTSIDE)
    except RuntimeError as error:
        log.append(str(error))
        return x + 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program",
    [
        indexes_behind_a_write,
        writes_at_indices,
        looks_up_inside_of_a_call,
        handles_any_error,
        raises_another_error,
        names_errors_in_a_global,
        suppresses_wrong_indices,
        handles_in_a_context_manager,
        handles_in_an_exit_stack,
        gathers,
        divides_integers,
    ],
)
def test_handlers_of_wrong_data_in_graphs_that_write(program: Any, backend: str) -> None:
    compiled = stator.compile(program, backend=backend)
    for i in (INSIDE, OUTSIDE, INSIDE, OUTSIDE):
        results = []
        for run in (program, compiled):
            x, log = torch.arange(12.0).view(4, 3), list[Any]()
            results.append((run(x, i, log), x, log))
        assert_same(results[1], results[0])


class Timed:
    def __init__(self) -> None:
        self.times = 0

    def __enter__(self) -> Timed:
        return self

    def __exit__(self, *error: object) -> None:
        self.times += 1


@contextlib.contextmanager
def training(model: torch.nn.Module) -> Any:
    try:
        yield
    finally:
        model.train()


def test_indices_end_a_graph_only_where_a_handler_ends_their_error() -> None:
    model = torch.nn.BatchNorm1d(3)

    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        try:
            with Timed(), training(model):
                return model(x[i])
        except (torch.OutOfMemoryError, ValueError):
            return x

    def by_constants(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        try:
            return x[1:, 0] // 2 + x[x > 3].sum() + INSIDE[0] // 2
        except Exception:
            return x

    def by_a_module_with_hooks(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return embedding(i)

    embedding = torch.nn.Embedding(5, 3)
    embedding.register_forward_hook(lambda module, args, result: result + 1)

    for run in (program, by_constants, by_a_module_with_hooks):
        assert stator.explain(run)(torch.ones(4, 3), INSIDE).graph_break_count == 0


def test_only_graphs_that_write_end_before_such_an_operator() -> None:
    assert stator.explain(writes_to_its_own)(GOOD, []).graph_break_count == 0
    assert stator.explain(writes_before)(GOOD.clone(), []).graph_break_count == 1
    assert stator.explain(writes_behind)(GOOD.clone(), []).graph_break_count == 1


def test_explain_counts_graphs_that_failed() -> None:
    explanation = stator.explain(caught_index)(TABLE, OUTSIDE, [])
    assert explanation.failed_graph_count == 1
    assert "graphs that failed: 1" in str(explanation)


@pytest.mark.fixed_sizes
@pytest.mark.graphs_may_fail_alone
def test_a_graph_that_fails_alone_again_and_again_is_given_up() -> None:
    calls = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*given: torch.Tensor) -> Any:
            calls.append(len(given))
            raise RuntimeError("of the backend")

        return run

    compiled = stator.compile(lambda x: x * 2, backend=backend)
    with pytest.warns(RuntimeWarning, match="raised an error that the program's own code") as said:
        for size in (2, 2, 2, 2, 3, 3, 3):
            torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0), rtol=0, atol=0)
    assert len(calls) == 4, "twice for each version"
    assert len(said) == 1


def factor(x: torch.Tensor) -> Any:
    try:
        return torch.linalg.cholesky(x)
    except RuntimeError as error:
        return str(error)


def test_a_graph_whose_operator_fails_in_all_calls_is_given_up() -> None:
    compiled, before = stator.compile(factor, backend="eager"), failed()
    with pytest.warns(RuntimeWarning, match="failed 8 times in a row"):
        for _ in range(12):
            assert_same(compiled(BAD), factor(BAD))
    assert failed() - before == 8
    assert_same(compiled(GOOD), factor(GOOD))


def test_a_graph_that_fails_for_some_data_is_kept() -> None:
    compiled, before = stator.compile(factor, backend="eager"), failed()
    for turn in range(30):
        given = BAD if turn % 5 else GOOD
        assert_same(compiled(given), factor(given))
    assert failed() - before == 24
