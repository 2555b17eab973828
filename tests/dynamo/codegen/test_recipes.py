"""Sources, recipes and effects as bytecode: what they load and make, what is shared, and in which order."""

from __future__ import annotations

import operator
from collections import OrderedDict, defaultdict, deque
from types import CodeType, FunctionType
from typing import Any

import pytest

from stator.base.errors import CompileError
from stator.dynamo.codegen import emit, support
from stator.dynamo.guards import source as s
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.host.iterator_state import keys_in_order
from stator.dynamo.ir import reconstruct_ir as r
from stator.dynamo.ir.capture_result import CapturedFrame, Return

GLOBAL = ["global"]


def template(x: Any, y: Any = None, *rest: Any, key: Any = 3, **more: Any) -> Any: ...


def run(value: r.Recipe, *args: Any, effects: list[r.Effect] | None = None, guards: Any = (), **kwargs: Any) -> Any:
    """Emit a frame of `template` that returns `value`, and call it."""
    captured = CapturedFrame(template, template.__code__, None, [], effects or [], Return(value), list(guards))
    function = FunctionType(emit(captured, None), globals(), "template", template.__defaults__)
    function.__kwdefaults__ = template.__kwdefaults__
    return function(*args, **kwargs)


def local(name: str) -> r.Load:
    return r.Load(s.LocalSource(name))


def const(value: Any) -> r.ConstantRecipe:
    return r.ConstantRecipe(value)


X = s.LocalSource("x")


def key_source(index: int) -> s.Source:
    return s.ItemSource(s.CallSource(keys_in_order, (X,)), index)


class Guarded(dict):
    """Counts what goes through overrides, which emitted code must not use."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("an override was used")

    __setitem__ = __iter__ = clear = update = __getitem__  # type: ignore[assignment]


class Odd:
    """`__dict__` and attribute writes are overridden."""

    def __getattribute__(self, name: str) -> Any:
        return "overridden" if name == "__dict__" else object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, ("through setattr", value))


def with_attributes(instance: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)
    return instance


def closure_of(value: Any) -> FunctionType:
    return lambda: value  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("source", "argument", "expected"),
    [
        (X, 5, 5),
        (s.LocalSource("rest"), 5, ()),
        (s.LocalSource("key"), 5, 3),
        (s.AttrSource(X, "real"), 5, 5),
        (s.ItemSource(X, 1), [4, 5], 5),
        (s.ItemSource(X, "k"), Guarded(k=5), 5),
        (s.ItemSource(X, "k"), defaultdict(list, k=5), 5),
        (key_source(1), Guarded(a=1, b=2), "b"),
        (key_source(0), OrderedDict(b=1, a=2), "b"),
        (s.ItemSource(s.InstanceDictSource(X), "a"), with_attributes(Odd(), a=7), 7),
        (s.ItemSource(s.InstanceDictSource(X), "__module__"), Odd, __name__),
        (s.TypeSource(X), [1], list),
        (s.ClosureSource(X, 0), closure_of(9), 9),
        (s.CallSource(len, (X,)), "abc", 3),
        (s.ConstantSource("c", GLOBAL), 1, GLOBAL),
        (s.GlobalSource("GLOBAL"), 1, GLOBAL),
        (s.ModuleGlobalSource(__name__, "GLOBAL"), 1, GLOBAL),
        (s.ModuleGlobalSource("collections", "deque"), 1, deque),
        (s.BuiltinSource("len"), 1, len),
        (s.FunctionSource(), 1, template),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, s.Source) else None,
)
def test_a_source_loads_what_it_names(source: s.Source, argument: Any, expected: Any) -> None:
    assert run(r.Load(source), argument) == expected


def test_exact_reads_are_plain_instructions_when_guards_say_the_type() -> None:
    source = s.ItemSource(X, 0)
    guard = Guard(X, GuardKind.TYPE, list)
    captured = CapturedFrame(template, template.__code__, None, [], [], Return(r.Load(source)), [guard])
    assert all(not callable(constant) for constant in emit(captured, None).co_consts)


def test_new_containers() -> None:
    made = run(
        r.NewTuple(
            [
                r.NewList([local("x"), const(2)]),
                r.NewDict([(const("b"), local("x")), (const("a"), r.NewTuple([]))]),
                r.call_recipe(slice, const(1), local("x"), const(None)),
            ]
        ),
        5,
    )
    assert made == ([5, 2], {"b": 5, "a": ()}, slice(1, 5, None)) and list(made[1]) == ["b", "a"]


def test_one_recipe_is_one_object() -> None:
    shared = r.NewList([const(1)])
    made = run(r.NewTuple([shared, shared, r.NewList([const(1)]), r.NewTuple([shared])]), 0)
    assert made[0] is made[1] is made[3][0] and made[2] is not made[0]


def test_calls_are_evaluated_once_and_take_keywords() -> None:
    log: list[Any] = []

    def note(*args: Any, **kwargs: Any) -> list[Any]:
        log.append((args, kwargs))
        return [len(log)]

    call = r.CallRecipe(const(note), [local("x")], {"k": const(2), "j": local("key")})
    made = run(
        r.NewTuple([call, r.call_recipe(operator.getitem, call, const(0)), r.GetAttr(call, "__class__")]), 1, key=4
    )
    assert made == ([1], 1, list) and log == [((1,), {"k": 2, "j": 4})]


@pytest.mark.parametrize("root", ["list", "dict", "tuple"])
def test_cycles_are_closed(root: str) -> None:
    inner = r.NewList([const(1)])
    table = r.NewDict([(const("inner"), inner)])
    pair = r.NewTuple([inner, table])
    inner.items.append(pair)
    made = run({"list": inner, "dict": table, "tuple": pair}[root], 0)
    a_list = made if root == "list" else made["inner"] if root == "dict" else made[0]
    assert a_list[0] == 1 and a_list[1][0] is a_list and a_list[1][1]["inner"] is a_list


def test_a_cycle_that_cannot_be_made_is_refused() -> None:
    first = r.NewTuple([])
    first.items.append(r.NewTuple([first]))
    with pytest.raises(CompileError, match="a reference cycle"):
        run(first, 0)


def new_function(code: CodeType, name: str, qualname: str, *parts: r.Recipe) -> r.Recipe:
    namespace = r.Load(s.ConstantSource("globals", globals()))
    return r.call_recipe(support.new_function, const(code), namespace, const(name), const(qualname), *parts)


def test_functions_with_their_cells() -> None:
    def maker() -> Any:
        count = 0

        def step(by: int = 1, *, twice: bool = False) -> int:
            nonlocal count
            count += by * (1 + twice)
            return count

        return step

    code = maker().__code__
    cell = r.NewCell(const(10))
    defaults = r.NewTuple([const(2)]), r.NewDict([(const("twice"), const(True))])
    recipe = new_function(code, "step", "here.step", *defaults, cell)
    held = r.call_recipe(operator.getitem, r.GetAttr(recipe, "__closure__"), const(0))
    step, again = run(r.NewTuple([recipe, held]), 0)
    assert step() == 14 and again.cell_contents == 14 and step.__qualname__ == "here.step"


def test_a_function_in_its_own_cell() -> None:
    def maker() -> Any:
        def countdown(n: int) -> int:
            return countdown(n - 1) + 1 if n else 0

        return countdown

    cell = r.NewCell(None)
    recipe = new_function(maker().__code__, "countdown", "countdown", const(None), const(None), cell)
    cell.content = recipe
    assert run(recipe, 0)(4) == 4


def test_effects_come_in_order_and_see_the_entry_state() -> None:
    items = [1, 2]
    first = r.Load(s.ItemSource(X, 0))
    effects = [
        r.call_effect(operator.setitem, local("x"), const(0), const(9)),
        r.Effect(r.CallRecipe(r.GetAttr(local("x"), "append"), [first])),
        r.call_effect(operator.setitem, local("x"), const(1), first),
    ]
    assert run(r.NewTuple([first, local("x")]), items, effects=effects) == (1, [9, 1, 1])


def test_replacing_the_content_of_lists() -> None:
    target = [1, 2, 3]
    support.replace_list(target, [4])
    assert target == [4]


@pytest.mark.parametrize("kind", [dict, OrderedDict, Guarded])
def test_replacing_the_content_of_dictionaries(kind: type) -> None:
    target = kind([("a", 1), ("b", 2)])
    support.replace_dict(target, {"b": 3, "a": 4})
    assert list(dict.items(target)) == [("b", 3), ("a", 4)]
    if kind is OrderedDict:
        assert list(target) == ["b", "a"] and list(reversed(target)) == ["a", "b"]


def test_signature_is_kept() -> None:
    captured = CapturedFrame(template, template.__code__, None, [], [], Return(local("more")), [])
    code = emit(captured, None)
    for field in ("co_argcount", "co_kwonlyargcount", "co_posonlyargcount", "co_flags", "co_name", "co_filename"):
        assert getattr(code, field) == getattr(template.__code__, field)
    assert run(local("more"), 1, 2, 3, key=4, other=5) == {"other": 5}
