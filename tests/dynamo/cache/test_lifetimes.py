"""Objects of a program that makes no graphs live as long as in the interpreter: guards, versions and finished captures
keep none of them, and variables keep theirs to the end. And what looking at an object must not do."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import stator
from stator.base import config, counters


@pytest.fixture(autouse=True)
def as_users_get_it(keep_empty_graphs: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "keep_empty_graphs", False)
    stator.reset()
    counters.clear()
    gc.collect()
    gc.disable()  # what is gone, goes by itself
    yield
    gc.enable()


class Thing:
    pass


class Settings(dict[str, Any]):
    pass


class Failed(Exception):
    def __init__(self, thing: object) -> None:
        self.thing = thing


def opaque(value: Any = None) -> Any:
    """Nothing that can be captured."""
    gc.isenabled()
    return value


def unread_variable_of_a_class_of_dictionaries() -> Any:
    settings = Settings(offset=5)
    reference = weakref.ref(settings)
    return opaque() is None and reference() is not None


def unread_list_of_things() -> Any:
    things = [(Thing(), 1)]
    reference = weakref.ref(things[0][0])
    opaque()
    return reference() is not None


def unread_generator() -> Any:
    said = []

    def generate() -> Iterator[int]:
        try:
            yield 1
        finally:
            said.append("closed")

    generator = generate()
    next(generator)
    opaque()
    return list(said)


def deleted_before_an_exception_that_is_handled() -> Any:
    thing = Thing()
    known = weakref.WeakKeyDictionary({thing: 1})
    opaque()
    del thing

    def check(values: Any) -> None:
        if 1 in values:
            raise AssertionError

    try:
        check(list(known.values()))
    except AssertionError:
        return "still there"
    return "gone"


def raised_and_handled() -> Any:
    def fail() -> None:
        raise Failed(thing)

    thing: Any = Thing()
    reference = weakref.ref(thing)
    try:
        fail()
    except:  # noqa: E722
        opaque()
    thing = None
    return reference() is None


def raised_and_handled_in_a_loop() -> Any:
    def fail() -> None:
        raise Failed(thing)

    thing: Any = Thing()
    reference = weakref.ref(thing)
    for _ in [0]:
        try:
            fail()
        except:  # noqa: E722
            break
    thing = None
    return reference() is None


@pytest.mark.parametrize(
    "program",
    [
        unread_variable_of_a_class_of_dictionaries,
        unread_list_of_things,
        unread_generator,
        deleted_before_an_exception_that_is_handled,
        raised_and_handled,
        raised_and_handled_in_a_loop,
    ],
    ids=lambda program: program.__name__,
)
def test_lifetimes_are_those_of_the_interpreter(program: Callable[[], Any]) -> None:
    expected = program()
    compiled = stator.compile(program, backend="eager")
    assert [compiled() for _ in range(3)] == [expected] * 3


def what_a_generator_gave_last() -> Any:
    things = [Thing(), Thing(), Thing()]
    references = [weakref.ref(thing) for thing in things]

    def generate() -> Iterator[Any]:
        for reference in references:
            thing = reference()
            if thing is not None:
                yield thing

    generator = generate()
    next(generator)
    opaque()
    del things[0]
    held = references[0]() is not None
    count = len(list(generator))
    return held, count, [reference() is None for reference in references]


def variable_of_a_function_that_calls_itself() -> Any:
    thing: Any = Thing()
    reference = weakref.ref(thing)

    def search(depth: int) -> Any:
        return thing if depth == 0 else search(depth - 1)

    opaque()
    found = search(2) is thing
    opaque()
    thing = None
    gone = reference() is None
    return found, gone


def member_of_a_circle_that_is_opened() -> Any:
    parent, child = Thing(), Thing()
    parent.child, child.parent = child, parent  # type: ignore[attr-defined]
    references = [weakref.ref(parent), weakref.ref(child)]
    opaque()
    same = parent.child.parent is parent  # type: ignore[attr-defined]
    opaque()
    del child.parent  # type: ignore[attr-defined]
    del parent, child
    return same, [reference() is None for reference in references]


def members_of_a_circle_that_are_made_in_a_graph() -> Any:
    kept = Thing()
    reference = weakref.ref(kept)
    first: list[Any] = [kept]
    second = [first]
    first.append(second)
    opaque(second)
    first.clear()
    del kept
    return reference() is None


@pytest.mark.parametrize(
    "program",
    [
        what_a_generator_gave_last,
        variable_of_a_function_that_calls_itself,
        member_of_a_circle_that_is_opened,
        members_of_a_circle_that_are_made_in_a_graph,
    ],
    ids=lambda program: program.__name__,
)
@pytest.mark.parametrize("replaced", [False, True])
def test_captures_keep_nothing_in_circles_of_their_own(
    program: Callable[[], Any], replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", replaced)
    compiled = stator.compile(program, backend="eager")
    assert [compiled() for _ in range(2)] == [program()] * 2


def scaled_by_its_sum(x: torch.Tensor, step: int) -> torch.Tensor:
    return x * x.sum().item()


def scaled_by_a_number(x: torch.Tensor, step: int) -> torch.Tensor:
    return x * float(step)


@pytest.mark.parametrize("program", [scaled_by_its_sum, scaled_by_a_number], ids=lambda program: program.__name__)
def test_captures_with_numbers_keep_no_tensors(program: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    compiled, references = stator.compile(program, backend="eager"), []
    for step in range(4):
        x = torch.ones(2 + step)
        references.append(weakref.ref(x))
        torch.testing.assert_close(compiled(x, step), program(x, step))
        del x
    assert [reference() is None for reference in references] == [True] * 4


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if x.sum() > 0:
            x = -x
        return self.second(x)


def test_parameters_behind_a_break_go_with_their_compiled_module() -> None:
    model = Branching()
    compiled = stator.compile(model, backend="eager")
    for x in torch.randn(3, 4, 2):
        torch.testing.assert_close(compiled(x), model(x))
    references = [weakref.ref(parameter) for parameter in model.parameters()]
    del model, compiled
    assert [reference() is None for reference in references] == [True] * 4


def test_memory_of_tensors_that_a_circle_held_returns_when_it_is_opened() -> None:
    class Node:
        def __init__(self, parent: Any) -> None:
            self.parent, self.children, self.value = parent, [], torch.ones(2)

    def program(x: torch.Tensor, root: Any) -> torch.Tensor:
        x = x + root.children[0].value + root.children[0].parent.value
        opaque()
        return x * 2

    compiled = stator.compile(program, backend="eager")
    root = Node(None)
    root.children.append(Node(root))
    references = [weakref.ref(root.value), weakref.ref(root.children[0].value)]
    assert compiled(torch.ones(2), root).tolist() == [6.0, 6.0]
    root.children[0].parent = None
    del root
    assert [reference() is None for reference in references] == [True, True]


def test_a_class_goes_while_what_was_compiled_for_it_stays() -> None:
    def use(thing: Any, x: torch.Tensor) -> torch.Tensor:
        return x * thing.factor() + thing.offset

    def once(compiled: Callable[..., torch.Tensor]) -> weakref.ref[Any]:
        class Local:
            offset = 1.0

            def factor(self) -> float:
                return 2.0

        assert compiled(Local(), torch.ones(2)).tolist() == [3.0, 3.0]
        return weakref.ref(Local)

    compiled = stator.compile(use, backend="eager")
    reference = once(compiled)
    gc.collect()  # classes are cycles
    assert reference() is None
    assert counters.counts["dynamo.compiled_frames"] == 1


def test_a_class_among_the_keys_of_a_dictionary_goes() -> None:
    def count(table: dict[Any, int], x: torch.Tensor) -> torch.Tensor:
        return x + len(list(table))

    compiled = stator.compile(count, backend="eager")

    def once() -> weakref.ref[Any]:
        class Local:
            pass

        assert compiled({Local: 1}, torch.ones(1)).item() == 2.0
        return weakref.ref(Local)

    reference = once()
    gc.collect()
    assert reference() is None


def test_an_object_that_is_the_key_of_an_entry_goes() -> None:
    def total(table: dict[Any, int], x: torch.Tensor) -> torch.Tensor:
        for value in table.values():
            x = x + value
        return x

    compiled = stator.compile(total, backend="eager")
    thing = Thing()
    reference = weakref.ref(thing)
    assert compiled({thing: 4}, torch.ones(1)).item() == 5.0
    assert compiled({thing: 4}, torch.ones(1)).item() == 5.0
    del thing
    assert reference() is None
    assert compiled({Thing(): 5}, torch.ones(1)).item() == 6.0


def test_looking_an_attribute_up_runs_no_comparison_of_keys_beside_it() -> None:
    class Attribute:
        def __get__(self, instance: object, owner: Any = None) -> int:
            return 1

    class Evil:
        def __hash__(self) -> int:
            return hash("attribute")

        def __eq__(self, other: object) -> bool:
            Holder.__dict__.get("attribute") is not None and delattr(Holder, "attribute")
            return False

    class Holder:
        attribute = Attribute()

    def read(holder: Any) -> Any:
        return holder.attribute

    holder = Holder()
    holder.__dict__[Evil()] = 0  # type: ignore[index]
    assert stator.compile(read, backend="eager")(holder) == 1


def test_a_dictionary_of_a_class_is_gone_through_behind_a_break() -> None:
    class Local:
        one = 1

    def names(cls: type, out: list[str]) -> list[str]:
        for base in cls.mro():
            for name, value in base.__dict__.items():
                if name[0] != "_" or value is None:
                    out.append(opaque(name))
        return out

    assert stator.compile(names, backend="eager")(Local, []) == names(Local, [])


def test_an_ordered_dict_whose_order_was_changed_is_relied_on_as_it_is() -> None:
    table = OrderedDict((name, float(number)) for number, name in enumerate("abc"))
    table.move_to_end("a")

    def weighed(table: OrderedDict[str, float], x: torch.Tensor) -> torch.Tensor:
        for at, value in enumerate(table.values()):
            x = x + at * value
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = stator.compile(weighed, backend="eager", fullgraph=True)
        assert compiled(table, torch.zeros(1)).item() == weighed(table, torch.zeros(1)).item()
        table.move_to_end("b")
        assert compiled(table, torch.zeros(1)).item() == weighed(table, torch.zeros(1)).item()


class Finalized:
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def __del__(self) -> None:
        self.said.append("gone")


def finalizer_at_del(x: torch.Tensor) -> Any:
    said: list[str] = []
    thing = opaque(Finalized(said))
    opaque()
    x = x + 1
    del thing
    said.append("behind")
    return x * 2, said


def finalizer_at_assignment(x: torch.Tensor) -> Any:
    said: list[str] = []
    thing = opaque(Finalized(said))
    opaque()
    x = x + 1
    thing = None
    said.append("behind")
    return x * 2, said, thing


def call_of_a_weak_reference(x: torch.Tensor) -> Any:
    said: list[Any] = []
    thing = opaque(Thing())
    reference = weakref.ref(thing, lambda _: said.append("gone"))
    opaque()
    x = x + 1
    del thing
    said.append("behind")
    return x * 2, said, reference()


def call_of_a_proxy(x: torch.Tensor) -> Any:
    said: list[Any] = []
    thing = opaque(Thing())
    proxy = weakref.proxy(thing, lambda _: said.append("gone"))
    opaque(proxy)
    x = x + 1
    del thing
    said.append("behind")
    return x * 2, said


def finalizer_of_what_another_variable_holds(x: torch.Tensor) -> Any:
    said: list[str] = []
    thing = opaque(Finalized(said))
    opaque()
    other = thing
    x = x + 1
    del thing
    said.append("behind")
    return x * 2, list(said), other is None


def class_made_inside(x: torch.Tensor) -> Any:
    class Local:
        pass

    reference = weakref.ref(Local)
    x = x + 1
    del Local
    gc.collect()
    return x * 2, reference() is None


def unread_dictionary_of_a_class_made_in_a_graph(x: torch.Tensor) -> Any:
    settings = Settings(offset=5)
    reference = weakref.ref(settings)
    x = x + 1
    opaque()
    return x * 2, reference() is None


@pytest.mark.parametrize(
    "program",
    [
        finalizer_at_del,
        finalizer_at_assignment,
        call_of_a_weak_reference,
        call_of_a_proxy,
        finalizer_of_what_another_variable_holds,
        class_made_inside,
        unread_dictionary_of_a_class_made_in_a_graph,
    ],
    ids=lambda program: program.__name__,
)
def test_ends_come_where_the_program_has_them_beside_tensors(program: Callable[[torch.Tensor], Any]) -> None:
    expected = program(torch.ones(2))[1:]
    compiled = stator.compile(program, backend="eager")
    for _ in range(3):
        x, *found = compiled(torch.ones(2))
        assert x.tolist() == [4.0, 4.0]
        assert tuple(found) == expected


def test_a_method_of_a_constant_that_waits_on_the_stack_at_a_break_is_no_reason_to_compile_again() -> None:
    def joined(x: torch.Tensor, words: list[str]) -> torch.Tensor:
        return x + len("-".join([opaque(word) for word in words]))

    compiled = stator.compile(joined, backend="eager")
    words = ["a", "b"]
    for _ in range(2):
        assert compiled(torch.zeros(1), words).item() == 3.0
    before = counters.counts["dynamo.compiled_frames"]
    for _ in range(6):
        assert compiled(torch.zeros(1), words).item() == 3.0
    assert counters.counts["dynamo.compiled_frames"] == before


def test_versions_that_die_with_each_call_are_not_made_forever() -> None:
    """A bound method of a generator is known by its identity alone, and dies with the call."""

    def function(x: torch.Tensor, method: Callable[[], Any]) -> torch.Tensor:
        method()
        return x * 2

    x = torch.ones(2)
    compiled = stator.compile(function)
    for _ in range(10):
        compiled(x, torch.Generator().initial_seed)
    counters.counts.clear()
    torch.testing.assert_close(compiled(x, torch.Generator().initial_seed), x * 2)
    assert not counters.counts["dynamo.compiled_frames"]
