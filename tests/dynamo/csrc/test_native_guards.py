"""Every source accessor and every guard kind that needs no torch: when it holds, when it fails, that nothing leaks.

Runs without torch and without pytest's features, so that test_interpreters.py can run it under other interpreters.
"""

import collections
import enum
import gc
import math
import sys
import types
import weakref

from stator.base.errors import CompileError, UserPlace
from stator.dynamo.cache.compiled_frames import _DropDead
from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import build_guard_tree, describe_failure, without_strong_references
from stator.dynamo.guards.source import (
    AttrSource,
    BuiltinSource,
    CallSource,
    CellSource,
    ClosureSource,
    ConstantSource,
    FunctionSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleGlobalSource,
    TypeSource,
)

X, Y = LocalSource("x"), LocalSource("y")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("__weakref__", "value")


class Hostile:
    """Whatever asks it about itself fails."""

    def __eq__(self, other):
        raise AssertionError("__eq__ was called")

    __hash__ = object.__hash__

    def __getattribute__(self, name):
        raise AssertionError(f"__getattribute__({name!r}) was called")

    def __len__(self):
        raise AssertionError("__len__ was called")

    def __bool__(self):
        raise AssertionError("__bool__ was called")


class HostileList(list):
    __len__ = __getitem__ = __iter__ = Hostile.__eq__


class HostileDict(dict):
    __len__ = __getitem__ = __iter__ = __contains__ = keys = Hostile.__eq__


def f(x=None, y=None):
    return x, y


def tree_of(*guards, function=f):
    return build_guard_tree(guards, function)


def holds(guard, x, y=None, function=f):
    tree = tree_of(guard, function=function)
    outcome = tree.check((x, y), function)
    assert (tree.explain((x, y), function) is None) == outcome
    assert sys.exc_info() == (None, None, None)
    return outcome


def both(guard, good, bad):
    """`guard` holds for each x in `good` and for none in `bad`."""
    for value in good:
        assert holds(guard, value), (str(guard), value)
    for value in bad:
        assert not holds(guard, value), (str(guard), value)


def test_is():
    thing, twin = Plain(), Plain()
    both(Guard(X, GuardKind.IS, thing), [thing], [twin, None, Hostile()])
    both(Guard(X, GuardKind.IS, None), [None], [0, False])
    both(Guard(X, GuardKind.IS, Slotted), [Slotted], [Plain])


def test_type():
    both(Guard(X, GuardKind.TYPE, int), [0, 5], [True, 1.0, None])
    both(Guard(X, GuardKind.TYPE, Hostile), [Hostile()], [Plain(), Hostile])


def test_equals_wants_the_exact_type_and_value():
    huge = 1 << 200
    both(Guard(X, GuardKind.EQUALS, huge), [1 << 200], [huge + 1, float(huge)])
    both(Guard(X, GuardKind.EQUALS, 1), [1], [True, 1.0, 2, Colour.RED, Hostile()])
    both(Guard(X, GuardKind.EQUALS, True), [True], [1, False])
    both(Guard(X, GuardKind.EQUALS, "ab"), ["a" + chr(98)], ["ac", b"ab", None])
    both(Guard(X, GuardKind.EQUALS, b"ab"), [b"ab"], ["ab", b"a"])
    both(Guard(X, GuardKind.EQUALS, 0.0), [0.0, float("0")], [-0.0, 0, False])
    both(Guard(X, GuardKind.EQUALS, math.nan), [math.nan], [0.0])
    both(Guard(X, GuardKind.EQUALS, 1j), [complex(0, 1)], [complex(-0.0, 1), 1])
    both(Guard(X, GuardKind.EQUALS, None), [None], [0, Hostile()])
    both(Guard(X, GuardKind.EQUALS, Colour.RED), [Colour.RED], [Colour.BLUE, 1])
    both(Guard(X, GuardKind.EQUALS, range(3)), [range(0, 3)], [range(4), (0, 1, 2)])
    both(Guard(X, GuardKind.EQUALS, ...), [...], [None])


def test_equals_of_tuples_and_slices_compares_the_parts_likewise():
    both(Guard(X, GuardKind.EQUALS, (1, ("a", 2.0))), [(1, ("a", 2.0))], [(1, ("a", 2)), (1,), (True, ("a", 2.0)), [1]])
    both(Guard(X, GuardKind.EQUALS, slice(1, None)), [slice(1, None)], [slice(1), slice(True, None)])


def test_equals_refuses_what_could_run_user_code():
    for value in (Plain(), [1], {1: 2}, (1, [2]), Hostile()):
        try:
            tree_of(Guard(X, GuardKind.EQUALS, value))
        except CompileError as error:
            assert "could run user code" in str(error)
        else:
            raise AssertionError(f"EQUALS took {type(value)}")


def test_length():
    values = [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, frozenset("ab"), "ab", HostileList("ab")]
    both(
        Guard(X, GuardKind.LENGTH, 2), [*values, HostileDict(a=1, b=2)], [[], (1,), {}, None, Hostile(), HostileList()]
    )


def test_dict_keys_in_order():
    expected = ("a", 1)
    reordered = collections.OrderedDict([("a", 0), (1, 0)])
    reordered.move_to_end("a")
    both(
        Guard(X, GuardKind.DICT_KEYS, expected),
        [{"a": 0, 1: 0}, HostileDict({"a": 0, 1: 0}), collections.OrderedDict([("a", 0), (1, 0)]), {1, "a"}],
        [{1: 0, "a": 0}, {"a": 0}, {"a": 0, 1: 0, 2: 0}, {"a": 0, True: 0}, None, ["a", 1], reordered],
    )


def test_absent_attribute_runs_no_user_code():
    both(Guard(X, GuardKind.ABSENT, "size"), [Plain(), Plain(other=1), Hostile(), 3], [Plain(size=1)])


def test_absent_attribute_notices_the_class():
    class Growing:
        pass

    tree = tree_of(Guard(X, GuardKind.ABSENT, "size"))
    assert tree.check((Growing(), None), f) and tree.check((Growing(), None), f)
    Growing.size = 1
    assert not tree.check((Growing(), None), f)


def test_absent_from_the_instance_may_be_there_on_the_class():
    class Having:
        size = 1

    tree = tree_of(Guard(X, GuardKind.ABSENT, "size"))
    having = Having()
    assert tree.check((having, None), f)
    having.size = 2
    assert not tree.check((having, None), f)
    del having.size, Having.size
    assert not tree.check((having, None), f), "the class attribute that was relied on is gone"


def test_not_in():
    both(
        Guard(X, GuardKind.NOT_IN, "a"),
        [{}, {"b": 1}, {"b"}, HostileDict(b=1)],
        [{"a": 1}, {"a"}, HostileDict(a=1), None],
    )


def test_code_of_a_function():
    def make(n):
        return lambda: n

    code = make(1).__code__
    both(Guard(X, GuardKind.CODE, code), [make(1), make(2)], [f, code, None])


def test_predicate_and_its_exceptions():
    def positive(value):
        return value > 0

    both(Guard(X, GuardKind.PREDICATE, positive), [1, 2.5], [0, -1, "text", None])


def test_the_predicate_of_callbacks_is_asked_where_a_weak_reference_has_one():
    asked = []
    guard = Guard(X, GuardKind.CALLBACKS, asked.append)  # None: does not hold
    thing, watched = Plain(), Plain()
    plain, watching = weakref.ref(thing), [weakref.ref(watched), weakref.ref(watched, print)]
    assert plain() is thing and holds(guard, thing) and holds(guard, 1) and not asked
    assert not holds(guard, watched) and set(asked) == {watched}
    watching.clear()
    assert holds(guard, watched)
    watching.append(weakref.ref(watched, _DropDead(Plain)))  # callbacks of guards are not the program's
    assert holds(guard, watched)


def test_same_and_distinct():
    thing, other = Plain(), Plain()
    same, distinct = Guard(X, GuardKind.SAME, Y), Guard(X, GuardKind.DISTINCT, Y)
    assert holds(same, thing, thing) and not holds(same, thing, other)
    assert holds(distinct, thing, other) and not holds(distinct, thing, thing)


def test_relations_between_deep_sources():
    guard = Guard(ItemSource(X, 0), GuardKind.SAME, ItemSource(Y, "k"))
    thing = Plain()
    assert holds(guard, [thing], {"k": thing})
    assert not holds(guard, [thing], {"k": Plain()})
    assert not holds(guard, [], {"k": thing})


def test_more_saved_values_than_fit_on_the_stack():
    guards = [Guard(ItemSource(X, i), GuardKind.DISTINCT, ItemSource(X, i + 1)) for i in range(100)]
    tree = tree_of(*guards)
    things = [Plain() for _ in range(101)]
    assert tree.check((things, None), f)
    assert not tree.check(([*things[:50], things[49], *things[51:]], None), f)


def test_items_of_containers_past_their_overrides():
    both(
        Guard(ItemSource(X, 1), GuardKind.EQUALS, "b"),
        [["a", "b"], ("a", "b"), {1: "b"}, HostileList("ab")],
        [["a"], {}],
    )
    both(Guard(ItemSource(X, -1), GuardKind.EQUALS, "b"), [["b"], ("a", "b")], [[], "b", None])
    both(Guard(ItemSource(X, "k"), GuardKind.EQUALS, 1), [{"k": 1}, HostileDict(k=1)], [{}, {"k": 2}, [1], Hostile()])
    both(Guard(ItemSource(X, (1, "k")), GuardKind.EQUALS, 1), [{(1, "k"): 1}], [{(1, "j"): 1}])


def test_read_only_views_of_dicts_are_read_as_dicts():
    view = types.MappingProxyType({"k": 1, 2: "two"})
    assert holds(Guard(ItemSource(X, "k"), GuardKind.EQUALS, 1), view)
    assert holds(Guard(ItemSource(X, 2), GuardKind.EQUALS, "two"), view)
    assert holds(Guard(X, GuardKind.LENGTH, 2), view) and holds(Guard(X, GuardKind.DICT_KEYS, ("k", 2)), view)
    assert holds(Guard(X, GuardKind.NOT_IN, "j"), view) and not holds(Guard(X, GuardKind.NOT_IN, "k"), view)
    assert not holds(Guard(ItemSource(X, "k"), GuardKind.EQUALS, 1), types.MappingProxyType(collections.UserDict(k=1)))


def test_a_missing_default_is_not_made():
    made = collections.defaultdict(int)
    assert not holds(Guard(ItemSource(X, "k"), GuardKind.EQUALS, 0), made)
    assert not made


def test_items_with_equal_but_different_keys_are_not_mixed_up():
    tree = tree_of(
        Guard(ItemSource(X, 1), GuardKind.EQUALS, "int"),
        Guard(ItemSource(Y, True), GuardKind.EQUALS, "bool"),
        Guard(ItemSource(Y, 1.0), GuardKind.EQUALS, "bool"),
    )
    assert tree.check((["", "int"], {True: "bool"}), f)


def test_attributes_and_failing_properties():
    class Failing:
        @property
        def value(self):
            raise KeyError("inside")

    both(
        Guard(AttrSource(X, "value"), GuardKind.EQUALS, 3), [Plain(value=3)], [Plain(), Plain(value=4), Failing(), None]
    )


def test_instance_dict_past_getattribute():
    source = ItemSource(InstanceDictSource(X), "value")
    hostile = Hostile()
    object.__getattribute__(hostile, "__dict__")["value"] = 3
    slotted = Slotted()
    slotted.value = 3
    both(Guard(source, GuardKind.EQUALS, 3), [Plain(value=3), hostile], [Plain(), slotted, 3, None])


def test_instance_dict_of_modules_and_classes():
    guard = Guard(ItemSource(InstanceDictSource(X), "pi"), GuardKind.EQUALS, math.pi)

    class Having:
        pi = math.pi

    both(guard, [math, Having, Having], [Plain, types, int])


def test_type_source():
    both(Guard(TypeSource(X), GuardKind.IS, int), [1], [True, int])
    both(
        Guard(AttrSource(TypeSource(X), "size"), GuardKind.EQUALS, 1),
        [type("Having", (), {"size": 1})()],
        [Plain(size=1)],
    )


def test_function_cells_globals_and_builtins():
    cell = "inside"

    def closure(x=None, y=None):
        return cell, x, y  # noqa: F821

    assert holds(Guard(FunctionSource(), GuardKind.IS, closure), 0, function=closure)
    assert holds(Guard(CellSource("cell"), GuardKind.EQUALS, "inside"), 0, function=closure)
    assert holds(Guard(ClosureSource(X, 0), GuardKind.EQUALS, "inside"), closure)
    assert not holds(Guard(ClosureSource(X, 1), GuardKind.EQUALS, "inside"), closure)
    assert not holds(Guard(ClosureSource(X, 0), GuardKind.EQUALS, "inside"), f)
    assert holds(Guard(GlobalSource("X"), GuardKind.IS, X), 0)
    assert not holds(Guard(GlobalSource("not_there"), GuardKind.IS, X), 0)
    assert holds(Guard(BuiltinSource("len"), GuardKind.IS, len), 0)
    assert holds(Guard(ModuleGlobalSource("math", "pi"), GuardKind.EQUALS, math.pi), 0)
    assert not holds(Guard(ModuleGlobalSource("math", "nothing"), GuardKind.EQUALS, 1), 0)
    assert not holds(Guard(ModuleGlobalSource("no.such.module", "x"), GuardKind.EQUALS, 1), 0)
    cell = "changed"
    assert not holds(Guard(CellSource("cell"), GuardKind.EQUALS, "inside"), 0, function=closure)
    del cell
    assert not holds(Guard(CellSource("cell"), GuardKind.EQUALS, "inside"), 0, function=closure)


def test_constants_as_bases():
    registry = {"a": 1}
    guard = Guard(ItemSource(ConstantSource("registry", registry), "a"), GuardKind.EQUALS, 1)
    assert holds(guard, 0)
    registry["a"] = 2
    assert not holds(guard, 0)


def test_calls_with_other_sources_as_arguments():
    guard = Guard(CallSource(divmod, (X, ItemSource(Y, 0))), GuardKind.EQUALS, (2, 1))
    assert holds(guard, 7, [3]) and not holds(guard, 8, [3])
    assert not holds(guard, 8, []) and not holds(guard, 7, [0]), "what cannot be read or called does not hold"
    nested = Guard(CallSource(abs, (CallSource(divmod, (X, Y)),)), GuardKind.EQUALS, 1)
    assert not holds(nested, 1, 1)
    assert holds(Guard(CallSource(len, (CallSource(divmod, (X, Y)),)), GuardKind.EQUALS, 2), 7, 3)


def test_shared_prefixes_are_shared_nodes():
    def deep(name):
        return ItemSource(ItemSource(InstanceDictSource(ItemSource(InstanceDictSource(X), "layer")), "weights"), name)

    tree = tree_of(
        *[Guard(deep(f"w{i}"), GuardKind.EQUALS, i) for i in range(10)], Guard(deep("w0"), GuardKind.EQUALS, 0)
    )
    assert tree.node_count == 1 + 5 + 10 and tree.check_count == 10
    assert tree.check((Plain(layer=Plain(weights={f"w{i}": i for i in range(10)})), None), f)


def test_unknown_names_are_refused_when_the_tree_is_built():
    for source in (LocalSource("z"), CellSource("z")):
        try:
            tree_of(Guard(source, GuardKind.EQUALS, 1))
        except CompileError as error:
            assert "'z' is not a" in str(error)
        else:
            raise AssertionError(f"{source!r} was taken")


def reason(*guards, x=None, y=None):
    tree = tree_of(*guards)
    failure = tree.explain((x, y), f)
    return describe_failure(without_strong_references(guards), failure)


def test_reasons_say_what_changed():
    place = UserPlace("model.py", 7, "forward")
    assert reason(Guard(X, GuardKind.TYPE, int, place), x="a") == (
        'x: type builtins.int became builtins.str (relied on at File "model.py", line 7, in forward)'
    )
    assert reason(Guard(X, GuardKind.EQUALS, 1), Guard(Y, GuardKind.EQUALS, 2), x=1, y=3) == "y: 2 became 3"
    assert reason(Guard(X, GuardKind.LENGTH, 2), x=[1]) == "x: length 2 became 1"
    assert (
        reason(Guard(X, GuardKind.DICT_KEYS, ("a", "b")), x={"b": 1, "c": 2}) == "x: its keys gained 'c' and lost 'a'"
    )
    assert reason(Guard(X, GuardKind.DICT_KEYS, ("a", "b")), x={"b": 1, "a": 2}) == "x: its keys changed their order"
    assert reason(Guard(ItemSource(X, "k"), GuardKind.EQUALS, 1), x={}) == "x['k']: cannot be read any more"
    assert reason(Guard(X, GuardKind.IS, Plain()), x=Plain()) == "x: Plain object became another Plain object"
    assert reason(Guard(X, GuardKind.NOT_IN, "a"), x={"a": 1}) == "x: now has the key 'a'"
    assert reason(Guard(X, GuardKind.SAME, Y), x=Plain(), y=Plain()) == "x: is no longer the same object as y"
    assert reason(Guard(X, GuardKind.DISTINCT, Y), x=f, y=f) == "x: is now the same object as y"
    assert (
        reason(Guard(X, GuardKind.ABSENT, "a"), x=Plain(a=1)) == "x: attribute 'a' changed between absent and present"
    )
    assert "x: code of f" in reason(Guard(X, GuardKind.CODE, f.__code__), x=reason)
    assert reason(Guard(X, GuardKind.PREDICATE, callable), x=1) == "x: callable no longer holds for 1"


def test_reasons_never_ask_hostile_objects():
    for kind, expected in [
        (GuardKind.TYPE, int),
        (GuardKind.EQUALS, 1),
        (GuardKind.LENGTH, 1),
        (GuardKind.CODE, f.__code__),
    ]:
        assert "Hostile" in reason(Guard(X, kind, expected), x=Hostile())


def test_trees_and_notes_keep_no_guarded_object_alive():
    class Local:
        pass

    thing = Local()
    guards = [Guard(X, GuardKind.IS, thing), Guard(X, GuardKind.TYPE, Local)]
    tree, kept = tree_of(*guards), without_strong_references(guards)
    gone = weakref.ref(thing), weakref.ref(Local)
    del thing, Local, guards
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert not tree.check((None, None), f) and len(kept) == 2


def test_a_dead_object_calls_back_once_for_each_check():
    thing, calls = Plain(), []
    guards = [Guard(X, GuardKind.IS, thing)]
    tree = build_guard_tree(guards, f, calls.append)
    del guards, thing
    gc.collect()
    assert len(calls) == 1 and tree is not None


def test_evaluation_gives_back_every_reference():
    thing = Plain(items=[1, {"k": "v"}])
    guards = [
        Guard(ItemSource(ItemSource(AttrSource(X, "items"), 1), "k"), GuardKind.EQUALS, "v"),
        Guard(X, GuardKind.DISTINCT, Y),
        Guard(CallSource(id, (X,)), GuardKind.EQUALS, id(thing)),
    ]
    tree = tree_of(*guards)
    values = (thing, None)
    before = sys.getrefcount(thing), sys.getrefcount(thing.items)
    for i in range(100):
        assert tree.check(values, f)
        thing.items[1]["k"] = i
        assert not tree.check(values, f)
        assert tree.explain(values, f)[1] == i
        thing.items[1]["k"] = "v"
    assert (sys.getrefcount(thing), sys.getrefcount(thing.items)) == before


def test_trees_are_collected_in_cycles():
    class Local:
        pass

    registry = Local()
    registry.tree = tree_of(Guard(AttrSource(ConstantSource("registry", registry), "tree"), GuardKind.TYPE, int))
    gone = weakref.ref(registry)
    del registry
    gc.collect()
    assert gone() is None


def test_a_predicate_that_destroys_what_is_being_checked():
    values = {"k": Plain()}

    def destroy(value):
        values.clear()
        gc.collect()
        return True

    tree = tree_of(
        Guard(ItemSource(X, "k"), GuardKind.PREDICATE, destroy),
        Guard(AttrSource(ItemSource(X, "k"), "a"), GuardKind.IS, None),
    )
    assert not tree.check((values, None), f)
