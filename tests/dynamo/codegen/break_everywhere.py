"""Runs small functions up to every step, leaves them there by emitted code, and lets resume functions finish them.

A concrete interpreter of the common instructions stands in for capture: its stack and variables become constants of the
break. Needs no torch, so that it also runs as a script under other interpreters. Prints "ok NUMBER_OF_BREAKS".
"""

from __future__ import annotations

import builtins
import operator
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def load_stator(source: str) -> None:
    """Make stator.dynamo importable without torch and without stator/__init__.py."""
    sys.path.insert(0, source)
    package = types.ModuleType("stator")
    package.__path__ = [str(Path(source) / "stator")]
    sys.modules["stator"] = package
    torch, fx = types.ModuleType("torch"), types.ModuleType("torch.fx")
    torch.fx, torch.Tensor = fx, object  # type: ignore[attr-defined]
    fx.GraphModule = object  # type: ignore[attr-defined]
    sys.modules.update({"torch": torch, "torch.fx": fx})


if __name__ == "__main__":
    load_stator(sys.argv[1])

from stator.base.errors import UserPlace  # noqa: E402
from stator.dynamo.bytecode import VERSION, Instruction, decode  # noqa: E402
from stator.dynamo.bytecode.arithmetic import COMPARISONS  # noqa: E402
from stator.dynamo.codegen import emit  # noqa: E402
from stator.dynamo.guards.source import LocalSource  # noqa: E402
from stator.dynamo.ir.capture_result import Break, BreakReason, CapturedFrame  # noqa: E402
from stator.dynamo.ir.reconstruct_ir import ConstantRecipe, Load, Recipe  # noqa: E402
from stator.dynamo.ir.resume import ResumePoint, closure_of, resume_code, resumption_of  # noqa: E402

# ---- a concrete interpreter, up to a given step ----

NEVER_LEFT = (
    "COPY_FREE_VARS",
    "DELETE_FAST",
    "JUMP_",
    "LOAD_FAST",
    "MAKE_CELL",
    "NOP",
    "PUSH_NULL",
    "RESUME",
    "STORE_FAST",
    "POP_EXCEPT",
    "PUSH_EXC_INFO",
)
NULL = object()
UNBOUND = object()
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "%": operator.mod,
    "//": operator.floordiv,
    "/": operator.truediv,
    "+=": operator.iadd,
    "*=": operator.imul,
    "-=": operator.isub,
}


class Machine:
    """Executes one call concretely; `step` once per instruction."""

    def __init__(self, function: types.FunctionType, bound: dict[str, Any]) -> None:
        self.function, self.code = function, function.__code__
        self.instructions = decode(self.code)
        self.locals = dict(bound)
        self.cells: dict[str, Any] = dict(zip(closure_of(self.code), function.__closure__ or (), strict=True))
        self.stack: list[Any] = []
        self.pc = 0
        self.kw_names: tuple[str, ...] = ()
        # that are running: (stack position of what was handled before, the exception)
        self.handlers: list[tuple[int, Any]] = []
        resumption = resumption_of(self.code)
        self.point = resumption.point if resumption is not None and resumption.point.handlers else None
        if self.point is not None:
            inner = [bound[self.point.stack_parameter(position)] for position in self.point.handlers[1:]]
            self.handlers = list(zip(self.point.handlers, [*inner, sys.exception()], strict=True))
        self.kept = len(self.handlers)

    def handled_before(self) -> LocalSource | None:
        """Where that comes from, when handlers that were running at entry have ended."""
        if self.point is None or self.kept == len(self.point.handlers):
            return None
        return LocalSource(self.point.stack_parameter(self.point.handlers[self.kept]))

    def run(self, steps: int) -> tuple[Any] | None:
        """Run at least so many steps, up to where a frame may be left. The result, if the function returned."""
        while True:
            instruction = self.instructions[self.pc]
            if instruction.opname in ("RETURN_VALUE", "RETURN_CONST"):
                if self.handled_before() is not None:
                    return None  # only emitted code can tell the interpreter what is being handled
                return (self.stack[-1] if instruction.opname == "RETURN_VALUE" else instruction.argval,)
            handler = getattr(self, "op_" + instruction.opname, None)
            if handler is None or (steps <= 0 and not self.kw_names and not instruction.opname.startswith(NEVER_LEFT)):
                return None
            before = list(self.stack)
            try:
                self.pc += 1
                handler(instruction)
            except Exception:  # the instruction itself is to raise, natively
                self.pc, self.stack = self.pc - 1, before
                return None
            steps -= 1

    def pops(self, count: int) -> list[Any]:
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def op_PUSH_EXC_INFO(self, i: Instruction) -> None:
        error = self.stack.pop()
        self.handlers.append((len(self.stack), error))
        self.stack += [self.handlers[-2][1] if len(self.handlers) > 1 else None, error]

    def op_POP_EXCEPT(self, i: Instruction) -> None:
        self.stack.pop()
        self.handlers.pop()
        self.kept = min(self.kept, len(self.handlers))

    def op_CHECK_EXC_MATCH(self, i: Instruction) -> None:
        wanted = self.stack.pop()
        self.stack.append(isinstance(self.stack[-1], wanted))

    def op_RESUME(self, i: Instruction) -> None: ...

    op_NOP = op_PRECALL = op_COPY_FREE_VARS = op_RESUME

    def op_KW_NAMES(self, i: Instruction) -> None:
        self.kw_names = i.argval

    def op_MAKE_CELL(self, i: Instruction) -> None:
        value = self.locals.pop(i.argval, UNBOUND)
        self.cells[i.argval] = types.CellType() if value is UNBOUND else types.CellType(value)

    def op_LOAD_FAST(self, i: Instruction) -> None:
        self.stack.append(self.cells[i.argval] if i.argval in self.cells else self.locals[i.argval])

    op_LOAD_FAST_CHECK = op_LOAD_CLOSURE = op_LOAD_FAST

    def op_LOAD_FAST_LOAD_FAST(self, i: Instruction) -> None:
        for name in i.argval:
            self.stack.append(self.locals[name])

    def op_LOAD_FAST_AND_CLEAR(self, i: Instruction) -> None:
        self.stack.append(self.locals.pop(i.argval, NULL))

    def op_STORE_FAST(self, i: Instruction) -> None:
        value = self.stack.pop()
        if value is NULL:
            self.locals.pop(i.argval, None)
        else:
            self.locals[i.argval] = value

    def op_STORE_FAST_LOAD_FAST(self, i: Instruction) -> None:
        self.locals[i.argval[0]] = self.stack.pop()
        self.stack.append(self.locals[i.argval[1]])

    def op_STORE_FAST_STORE_FAST(self, i: Instruction) -> None:
        for name in i.argval:
            self.locals[name] = self.stack.pop()

    def op_DELETE_FAST(self, i: Instruction) -> None:
        del self.locals[i.argval]

    def op_LOAD_DEREF(self, i: Instruction) -> None:
        self.stack.append(self.cells[i.argval].cell_contents)

    def op_STORE_DEREF(self, i: Instruction) -> None:
        self.cells[i.argval].cell_contents = self.stack.pop()

    def op_LOAD_CONST(self, i: Instruction) -> None:
        self.stack.append(i.argval)

    def op_LOAD_GLOBAL(self, i: Instruction) -> None:
        namespace = self.function.__globals__
        value = namespace[i.argval] if i.argval in namespace else getattr(builtins, i.argval)
        pair = [value, NULL] if VERSION.callee_first else [NULL, value]
        self.stack += pair if i.flags & 1 else [value]

    def op_LOAD_ATTR(self, i: Instruction) -> None:
        value = getattr(self.stack.pop(), i.argval)
        pair = [value, NULL] if VERSION.callee_first else [NULL, value]
        self.stack += pair if i.flags & 1 else [value]

    def op_LOAD_METHOD(self, i: Instruction) -> None:
        self.stack += [NULL, getattr(self.stack.pop(), i.argval)]

    def op_STORE_ATTR(self, i: Instruction) -> None:
        value, target = self.pops(2)
        setattr(target, i.argval, value)

    def op_PUSH_NULL(self, i: Instruction) -> None:
        self.stack.append(NULL)

    def op_POP_TOP(self, i: Instruction) -> None:
        self.stack.pop()

    def op_COPY(self, i: Instruction) -> None:
        self.stack.append(self.stack[-i.argval])

    def op_SWAP(self, i: Instruction) -> None:
        self.stack[-1], self.stack[-i.argval] = self.stack[-i.argval], self.stack[-1]

    def op_BINARY_OP(self, i: Instruction) -> None:
        left, right = self.pops(2)
        self.stack.append(BINARY[i.argval](left, right))

    def op_COMPARE_OP(self, i: Instruction) -> None:
        left, right = self.pops(2)
        self.stack.append(COMPARISONS[i.argval](left, right))

    def op_BINARY_SUBSCR(self, i: Instruction) -> None:
        container, key = self.pops(2)
        self.stack.append(container[key])

    def op_STORE_SUBSCR(self, i: Instruction) -> None:
        value, container, key = self.pops(3)
        container[key] = value

    def op_BUILD_LIST(self, i: Instruction) -> None:
        self.stack.append(self.pops(i.argval))

    def op_BUILD_TUPLE(self, i: Instruction) -> None:
        self.stack.append(tuple(self.pops(i.argval)))

    def op_LIST_APPEND(self, i: Instruction) -> None:
        self.stack[-1 - i.argval].append(self.stack.pop())

    def op_UNPACK_SEQUENCE(self, i: Instruction) -> None:
        self.stack += reversed(list(self.stack.pop()))

    def op_GET_ITER(self, i: Instruction) -> None:
        self.stack.append(iter(self.stack.pop()))

    def op_FOR_ITER(self, i: Instruction) -> None:
        try:
            self.stack.append(next(self.stack[-1]))
        except StopIteration:
            self.stack.pop()
            assert i.target is not None
            self.pc = i.target.index + {(3, 11): 0, (3, 12): 1, (3, 13): 2}[VERSION.number]

    def op_JUMP_FORWARD(self, i: Instruction) -> None:
        assert i.target is not None
        self.pc = i.target.index

    op_JUMP_BACKWARD = op_JUMP_BACKWARD_NO_INTERRUPT = op_JUMP_FORWARD

    def _jump(self, i: Instruction, condition: Callable[[Any], bool]) -> None:
        if condition(self.stack.pop()):
            self.op_JUMP_FORWARD(i)

    def op_POP_JUMP_IF_TRUE(self, i: Instruction) -> None:
        self._jump(i, bool)

    op_POP_JUMP_FORWARD_IF_TRUE = op_POP_JUMP_BACKWARD_IF_TRUE = op_POP_JUMP_IF_TRUE

    def op_POP_JUMP_IF_FALSE(self, i: Instruction) -> None:
        self._jump(i, operator.not_)

    op_POP_JUMP_FORWARD_IF_FALSE = op_POP_JUMP_BACKWARD_IF_FALSE = op_POP_JUMP_IF_FALSE

    def op_TO_BOOL(self, i: Instruction) -> None:
        self.stack.append(bool(self.stack.pop()))

    def op_BEFORE_WITH(self, i: Instruction) -> None:
        manager = self.stack.pop()
        self.stack += [manager.__exit__, manager.__enter__()]

    def op_CALL(self, i: Instruction) -> None:
        first, second, *args = self.pops(i.argval + 2)
        if VERSION.callee_first:
            callee, receiver = first, second
        else:
            callee, receiver = (second, NULL) if first is NULL else (first, second)
        self._call(callee, ([] if receiver is NULL else [receiver]) + args, self.kw_names)
        self.kw_names = ()

    def op_CALL_KW(self, i: Instruction) -> None:
        callee, receiver, *args, names = self.pops(i.argval + 3)
        self._call(callee, ([] if receiver is NULL else [receiver]) + args, names)

    def op_CALL_FUNCTION_EX(self, i: Instruction) -> None:
        mapping = self.stack.pop() if i.argval & 1 else {}
        args = self.stack.pop()
        pair = self.pops(2)
        self.stack.append(pair[0 if VERSION.callee_first else 1](*args, **mapping))

    def _call(self, callee: Any, args: list[Any], names: tuple[str, ...]) -> None:
        if callee is explode:
            raise RuntimeError("not here: the call is to raise natively, once")
        positional = args[: len(args) - len(names)]
        self.stack.append(callee(*positional, **dict(zip(names, args[len(positional) :], strict=True))))


# ---- leaving at a step ----


def recipe_of(value: Any) -> Recipe | None:
    return None if value is NULL else ConstantRecipe(value)


class LeftOften(Exception):
    """The function was left at this instruction twice, in other turns of a loop."""


def leave_at(
    function: types.FunctionType, bound: dict[str, Any], step: int, again: int, seen: Counter[int] | None = None
) -> tuple[bool, Any]:
    """Run `step` steps concretely, the rest by emitted code; resume functions are left after `again` steps in turn
    (-1: never). Returns whether it was left before its end, and the result. `seen`: how often it was left where."""
    machine = Machine(function, bound)
    ended = machine.run(step)
    if ended is not None:
        return False, ended[0]
    if seen is not None:
        if seen[machine.pc] == 2:
            raise LeftOften
        seen[machine.pc] += 1
    exit_ = Break(
        machine.pc,
        tuple(map(recipe_of, machine.stack)),
        {name: ConstantRecipe(value) for name, value in machine.locals.items()},
        {name: ConstantRecipe(cell) for name, cell in machine.cells.items()},
        BreakReason("test", "leave here", UserPlace("x", 1, "f")),
        tuple((position, ConstantRecipe(error)) for position, error in machine.handlers),
        machine.kept,
    )
    before = machine.handled_before()
    captured = CapturedFrame(
        function, function.__code__, None, [], [], exit_, [], handled_before=None if before is None else Load(before)
    )

    def make_resume(point: ResumePoint) -> Any:
        code, count = resume_code(point), len(point.closure)

        def call(*given: Any) -> Any:
            resumed = types.FunctionType(code, function.__globals__, "f", None, given[:count])
            return continued(resumed, point)(*given[count:])

        return call

    def continued(resumed: types.FunctionType, point: ResumePoint) -> Any:
        def call(*args: Any) -> Any:
            names = resumed.__code__.co_varnames[: resumed.__code__.co_argcount]
            if again >= 0:
                return leave_at(resumed, dict(zip(names, args, strict=True)), again, again)[1]
            return resumed(*args)

        return call

    code = emit(captured, None, make_resume=make_resume, dispatch=lambda callee: callee)
    replaced = types.FunctionType(code, function.__globals__, "f", function.__defaults__, function.__closure__)
    return True, replaced(*bound.values())


# ---- functions to leave ----


class Manager:
    """Swallows ValueError, notes what happens."""

    def __init__(self, log: list[Any], swallow: bool = True) -> None:
        self.log, self.swallow = log, swallow

    def __enter__(self) -> int:
        self.log.append("enter")
        return 7

    def __exit__(self, kind: type | None, value: object, trace: object) -> bool:
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow and kind is ValueError


class Base:
    def scaled(self, x: int) -> int:
        return x * 10


class Derived(Base):
    def scaled(self, x: int) -> int:
        total = 0
        for i in range(2):
            total += super().scaled(x) + i
        return total


def straight(log: list[Any], n: int) -> Any:
    a = n + 1
    b = max(a, len(log), 3)
    log.append((a, b))
    return sorted([b, a, n], key=lambda value: -value), {"x": a}.get("x", b)


def loops(log: list[Any], n: int) -> Any:
    total = 0
    for i in range(n):
        for j in (1, 2):
            if j == i:
                continue
            total += i * j
            log.append(total)
        if total > 20:
            break
    else:
        log.append("done")
    while total > 3:
        total -= 2
        if total % 5 == 0:
            log.append("five")
    return total


def nested_with(log: list[Any], n: int) -> Any:
    with Manager(log) as seven:
        x = seven + n
        with Manager(log, swallow=False):
            log.append(x)
            if n > 2:
                raise ValueError("big")
        log.append("between")
    log.append("after")
    return x


def handlers(log: list[Any], n: int) -> Any:
    for i in range(3):
        try:
            log.append(10 // (n - i))
        except ZeroDivisionError as error:
            log.append(str(error))
            continue
        finally:
            log.append(("finally", i))
    try:
        try:
            int("x" * n)
        except TypeError:
            log.append("never")
    except ValueError as error:
        log.append(type(error).__name__)
    else:
        log.append("else")
    return len(log)


def explode(log: list[Any], how: type[Exception]) -> int:
    log.append(how.__name__)
    raise how("exploded")


def handlers_of_calls(log: list[Any], n: int) -> Any:
    for how in (KeyError, ValueError):
        try:
            explode(log, how)
        except KeyError as error:
            log.append(str(error))
        except ValueError:
            with Manager(log):
                n += explode(log, ValueError)
            log.append("swallowed")
    return n


def in_handlers(log: list[Any], n: int) -> Any:
    try:
        try:
            log.append(10 // (n - 1))
        except ZeroDivisionError:
            log.append(repr(sys.exception()))
            try:
                log.append({}["missing"])
            except KeyError as error:
                log.append((repr(sys.exception()), repr(error.__context__)))
            for _ in range(2):
                log.append(repr(sys.exception()))
            raise
    except ArithmeticError:
        log.append(repr(sys.exception()))
        with Manager(log):
            raise ValueError(n) from None
    log.append(repr(sys.exception()))
    raise KeyError(n)


def raising(log: list[Any], n: int) -> Any:
    try:
        log.append("body")
        [1, 2, 3][n + 5]
    finally:
        log.append("cleanup")


def closures(log: list[Any], n: int) -> Any:
    count = n

    def add(k: int) -> int:
        nonlocal count
        count += k
        return count

    log.append(add(2))
    count = count * 2
    values = [add(i) + count for i in range(3)]
    return values, count, add(0)


def expressions(log: list[Any], n: int) -> Any:
    pair, rest = (n, n + 1), [*range(n)]
    x = max(len(rest), min(pair[0], abs(-n)), *pair) + sum(rest, start=n)
    text = f"{x:>4}|{n!r}"
    y = (n and x) or None
    z = 0 if y is None else 1
    rest[0:1] = [z, z]
    del rest[0]
    first, *others = [*rest, 1, 2]
    log.append(text)
    return x < n <= 5, y, not z, first, others, {**{"a": n}, "b": x}, {*pair}


def generator_in(log: list[Any], n: int) -> Any:
    def numbers() -> Iterator[int]:
        for i in range(n):
            log.append(i)
            yield i * i

    return [value + 1 for value in numbers() if value != 1]


CASES: list[tuple[types.FunctionType, list[int]]] = [
    (straight, [3]),
    (loops, [4]),
    (nested_with, [1, 3]),
    (handlers, [1]),
    (handlers_of_calls, [1]),
    (in_handlers, [1]),
    (raising, [1]),
    (closures, [4]),
    (expressions, [2]),
    (generator_in, [3]),
]
MOST_STEPS = 400
EVERY = 3  # three versions of Python leave at every step between them
FIRST_STEP = sys.version_info.minor % EVERY


def outcome(call: Callable[[list[Any]], Any]) -> Any:
    """Result or exception with its message, and the log."""
    log: list[Any] = []
    try:
        result: Any = call(log)
    except LeftOften:
        raise
    except Exception as error:
        result = (type(error), str(error), repr(error.__context__))
    return result, log, sys.exception()


def check(function: types.FunctionType, n: int, again: int) -> int:
    """Leave at steps; the number of breaks that were made."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    made, seen = 0, Counter[int]()

    def bound(log: list[Any]) -> dict[str, Any]:
        return dict(zip(names, (log, n), strict=True))

    for step in range(FIRST_STEP, MOST_STEPS, EVERY if again < 0 else 5 * EVERY):
        expected = outcome(lambda log: function(*bound(log).values()))
        left: list[bool] = []

        def run(log: list[Any], step: int = step, left: list[bool] = left) -> Any:
            try:
                happened, result = leave_at(function, bound(log), step, again, seen)
            except LeftOften:
                raise
            except BaseException:
                left.append(True)
                raise
            left.append(happened)
            return result

        try:
            found = outcome(run)
        except LeftOften:
            continue
        if left == [False]:
            break  # it ended before
        made += 1
        assert found == expected, f"{function.__name__}({n}) left at step {step}: {found} instead of {expected}"
    return made


def main() -> int:
    made = 0
    for function, values in CASES:
        for n in values:
            for again in (-1, 13):
                made += check(function, n, again)
    for again in (-1, 3):
        made += check_method(again)
    return made


def check_method(again: int) -> int:
    """super() without arguments keeps working in resume functions."""
    made = 0
    for step in range(60):
        left, result = leave_at(Derived.scaled, {"self": Derived(), "x": 2}, step, again)
        if left:
            made += 1
            assert result == 41, f"method left at step {step}: {result}"
    return made


if __name__ == "__main__":
    print("ok", main())
