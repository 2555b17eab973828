"""The memo of a guard tree never answers otherwise than the tree: random guards over a small world that changes.

`check` may answer from the memo, `explain` never does. Runs without torch and without pytest's features, so that
test_interpreters.py can run it under other interpreters.
"""

import collections
import gc
import random
import sys
import types
import weakref

from stator.dynamo.guards.guard import Guard, GuardKind, Lookup
from stator.dynamo.guards.guard_tree import build_guard_tree
from stator.dynamo.guards.source import (
    AttrSource,
    CallSource,
    CellSource,
    ClosureSource,
    ConstantSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    LocalSource,
    ModuleGlobalSource,
    TypeSource,
)
from stator.dynamo.host.iterator_state import keys_in_order

MODULE = "memo_test_module"
WARM = 4  # calls after which a memo stands


class Box:
    kind = "box"

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)

    def method(self):
        return 1


class OtherBox(Box):
    pass


class Table(dict):
    pass


def attribute(base, name):
    return ItemSource(InstanceDictSource(base), name)


class World:
    """A function with a closure and globals, and arguments: an object like a module, and a number."""

    def __init__(self):
        cell = Box(x=1)
        self.globals = {"g": Box(x=1), "number": 3, "__builtins__": __builtins__}

        def function(self, y):
            return cell, self, y

        def refill(value):
            nonlocal cell
            cell = value

        self.refill = refill
        self.function = types.FunctionType(function.__code__, self.globals, "function", None, function.__closure__)
        self.helper = lambda: 1
        self.root = Box(
            x=1,
            name="root",
            child=Box(x=2, child=Box(x=3, items=[Box(x=1), Box(x=2)])),
            table={"a": Box(x=1), "b": 2, 5: Box(x=4)},
            own=Table(a=Box(x=1)),
            pair=(Box(x=1), 2, ("in", Box(x=7))),
            order=collections.OrderedDict(a=1, b=2),
            bag={1, 2},
            helper=self.helper,
        )
        sys.modules[MODULE] = types.ModuleType(MODULE)
        sys.modules[MODULE].__dict__.update(box=Box(x=1), limit=4)
        self.y = 5

    def arguments(self):
        return (self.root, self.y)

    def sources(self):
        """Every place of the world, with the object that is there."""
        root, cell = LocalSource("self"), CellSource("cell")
        found = [
            (root, self.root),
            (LocalSource("y"), self.y),
            (cell, self.function.__closure__[0].cell_contents),
            (GlobalSource("g"), self.globals["g"]),
            (GlobalSource("number"), self.globals["number"]),
            (ModuleGlobalSource(MODULE, "box"), sys.modules[MODULE].box),
            (ModuleGlobalSource(MODULE, "limit"), sys.modules[MODULE].limit),
        ]
        for source, value in found:  # grows meanwhile
            if isinstance(value, Box) and len(found) < 200:
                found.append((InstanceDictSource(source), value.__dict__))
                found += [(attribute(source, name), item) for name, item in value.__dict__.items()]
                if "x" in value.__dict__:
                    found.append((AttrSource(source, "x"), value.x))
                found.append((TypeSource(source), type(value)))
            elif isinstance(value, list | tuple) and type(value) is not str:
                found += [(ItemSource(source, index), item) for index, item in enumerate(value)]
            elif isinstance(value, dict) and not isinstance(source, InstanceDictSource):
                found += [(ItemSource(source, key), item) for key, item in value.items()]
                found.append((ItemSource(CallSource(keys_in_order, (source,)), 0), next(iter(value))))
        return found


def guards_of(random, source, value):
    """The guards that hold for `value` at `source`, some of them."""
    possible = [Guard(source, GuardKind.TYPE, type(value))]
    if isinstance(value, int | str):
        possible += [Guard(source, GuardKind.EQUALS, value)] * 2
    if isinstance(value, dict | list | tuple | set):
        possible.append(Guard(source, GuardKind.LENGTH, len(value)))
    if isinstance(value, dict):
        possible += [Guard(source, GuardKind.DICT_KEYS, tuple(value)), Guard(source, GuardKind.NOT_IN, "new")]
    if isinstance(value, Box):
        lookups = (Lookup("method", Box.method), Lookup("kind", None, Box), Lookup("new"))
        possible += [
            Guard(source, GuardKind.ABSENT, "new"),
            Guard(source, GuardKind.IS, value),
            Guard(source, GuardKind.PREDICATE, lambda box: box.kind == "box"),
            Guard(ConstantSource("a class", type(value)), GuardKind.LOOKUPS, lookups),
            Guard(TypeSource(source), GuardKind.IS, type(value)),
            Guard(CallSource(len, (InstanceDictSource(source),)), GuardKind.EQUALS, len(value.__dict__)),
        ]
    if isinstance(value, types.FunctionType):
        possible.append(Guard(source, GuardKind.CODE, value.__code__))
        if value.__closure__:
            possible.append(Guard(ClosureSource(source, 0), GuardKind.TYPE, Box))
    return random.sample(possible, random.randint(0, min(2, len(possible))))


def random_guards(random, world):
    places = world.sources()
    guards = [guard for source, value in places for guard in guards_of(random, source, value)]
    boxes = [(source, value) for source, value in places if isinstance(value, Box)]
    for _ in range(random.randint(0, 3)):
        (one, first), (other, second) = random.sample(boxes, 2)
        guards.append(Guard(one, GuardKind.SAME if first is second else GuardKind.DISTINCT, other))
    if random.random() < 0.3:
        unique = list({id(value): source for source, value in boxes}.values())
        guards.append(Guard(ConstantSource("None", None), GuardKind.ALL_DISTINCT, tuple(unique)))
    random.shuffle(guards)
    return guards


def every_box(world):
    return [value for _, value in world.sources() if isinstance(value, Box)]


def change_attribute(random, world):
    box = random.choice(every_box(world))
    name = random.choice([*box.__dict__, "new"])
    missing = object()
    old = box.__dict__.get(name, missing)
    twin = old if isinstance(old, int) and random.random() < 0.3 else random.choice([1, "s", Box(x=1), (), None])
    setattr(box, name, twin)
    return lambda: delattr(box, name) if old is missing else setattr(box, name, old)


def delete_attribute(random, world):
    box = random.choice(every_box(world))
    if not box.__dict__:
        return lambda: None
    name = random.choice(list(box.__dict__))
    items = list(box.__dict__.items())
    delattr(box, name)

    def restore():
        box.__dict__.clear()
        box.__dict__.update(items)

    return restore


def replace_instance_dict(random, world):
    box = random.choice(every_box(world))
    old = box.__dict__
    box.__dict__ = dict(old) if random.random() < 0.7 else {**old, "x": 99}
    return (lambda: setattr(box, "__dict__", old)) if random.random() < 0.5 else (lambda: None)


def change_class(random, world):
    box = random.choice(every_box(world))
    old = box.__class__
    box.__class__ = OtherBox if old is Box else Box
    return lambda: setattr(box, "__class__", old)


def change_container(random, world):
    root = world.root.__dict__
    change = random.choice(["table", "order", "bag", "items", "own"])
    if change == "table" and isinstance(root.get("table"), dict):
        table, key, value = root["table"], random.choice(["a", "b", 5, "new"]), random.choice([2, Box(x=1)])
        old = dict(table)
        table[key] = value
        return lambda: (table.clear(), table.update(old))
    if change == "order" and isinstance(root.get("order"), dict):
        order = root["order"]
        order.move_to_end("a")
        return lambda: order.move_to_end("a", last=False)
    if change == "bag" and isinstance(root.get("bag"), set):
        bag = root["bag"]
        bag.add(9)
        return lambda: bag.discard(9)
    if change == "own" and isinstance(root.get("own"), Table):
        own = root["own"]
        old = own["a"]
        own["a"] = Box(x=random.choice([1, 2]))
        return lambda: own.__setitem__("a", old)
    items = getattr(getattr(getattr(world.root, "child", None), "child", None), "items", None)
    if not isinstance(items, list):
        return lambda: None
    old = list(items)
    items.append(items.pop(0)) if random.random() < 0.5 else items.append(3)
    return lambda: items.__setitem__(slice(None), old)


def change_surroundings(random, world):
    change = random.randrange(6)
    if change == 0:
        old = world.globals["g"]
        world.globals["g"] = random.choice([Box(x=1), 4])
        return lambda: world.globals.__setitem__("g", old)
    if change == 1:
        world.globals["unrelated"] = random.random()
        return lambda: None
    if change == 2:
        old = world.function.__closure__[0].cell_contents
        world.refill(random.choice([Box(x=1), 4]))
        return lambda: world.refill(old)
    if change == 3:
        old = world.helper.__code__
        world.helper.__code__ = (lambda: 2).__code__
        return lambda: setattr(world.helper, "__code__", old)
    if change == 4:
        module = sys.modules[MODULE]
        old = module.limit
        module.limit = random.choice([4, 8])
        return lambda: setattr(module, "limit", old)
    old = world.y
    world.y = random.choice([5, 6, "y"])
    return lambda: setattr(world, "y", old)


def remove_from_class(name):
    if name in Box.__dict__:
        delattr(Box, name)


def change_type(random, world):
    change = random.randrange(3)
    if change == 0:
        Box.new = 1
        return lambda: remove_from_class("new")
    if change == 1:
        Box.unrelated = random.random()
        return lambda: remove_from_class("unrelated")
    old = Box.method
    Box.method = lambda self: 2
    return lambda: setattr(Box, "method", old)


def replace_root(random, world):
    """Another object with the same content, which may come to lie where the old one lay."""
    old = world.root.__dict__
    other = Box()
    other.__dict__.update(old)
    if random.random() < 0.3:
        other.x = 17
    world.root = other
    return lambda: None


CHANGES = (
    change_attribute,
    delete_attribute,
    replace_instance_dict,
    change_class,
    change_container,
    change_surroundings,
    change_type,
    replace_root,
)


def compare(tree, world):
    expected = tree.explain(world.arguments(), world.function) is None
    for _ in range(2):
        assert tree.check(world.arguments(), world.function) == expected
    return expected


def run(seed):
    """Hits of the memo over a random history."""
    random_ = random.Random(seed)
    world = World()
    tree = build_guard_tree(random_guards(random_, world), world.function)
    for _ in range(WARM):
        assert tree.check(world.arguments(), world.function)
    undone = []
    try:
        for _ in range(40):
            undo = random_.choice(CHANGES)(random_, world)
            if random_.random() < 0.7:
                try:
                    compare(tree, world)
                finally:
                    undo()
            else:
                undone.append(undo)
            compare(tree, world)
    finally:
        for undo in reversed(undone):
            undo()
        remove_from_class("new")
        remove_from_class("unrelated")
    return tree.memo_hits


def test_the_memo_answers_as_the_tree():
    hits = sum(run(seed) for seed in range(150))
    assert hits > 1000  # else nothing was tested


def test_a_dict_that_changes_in_every_call_does_not_end_the_memo():
    world = World()
    guards = [Guard(attribute(LocalSource("self"), "child"), GuardKind.TYPE, Box)]
    tree = build_guard_tree(guards, world.function)
    for turn in range(20):
        world.root.counter = turn
        assert tree.check(world.arguments(), world.function)
    assert tree.memo_hits >= 10


def test_other_instances_at_the_place_of_the_first_are_told_apart():
    world = World()
    guards = [
        Guard(LocalSource("self"), GuardKind.TYPE, Box),
        Guard(attribute(attribute(LocalSource("self"), "child"), "x"), GuardKind.EQUALS, 2),
    ]
    tree = build_guard_tree(guards, world.function)
    for turn in range(200):
        box = Box(child=Box(x=2 + turn % 3))
        assert tree.check((box, 1), world.function) == (turn % 3 == 0)
        del box  # the next one is made where it lay


def test_a_memo_keeps_nothing_alive():
    world = World()
    guards = random_guards(random.Random(1), world)
    tree = build_guard_tree(guards, world.function)
    for _ in range(WARM):
        assert tree.check(world.arguments(), world.function)
    assert tree.memo_hits > 0
    gone = [weakref.ref(world.root.child), weakref.ref(world.root.pair[0])]
    function, world.root = world.function, None
    del guards, world
    gc.collect()
    assert not any(reference() for reference in gone)
    assert not tree.check((Box(), 5), function)


def test_what_a_predicate_changes_is_seen_in_the_same_evaluation():
    """The predicate takes away what the guards behind it look at."""
    world = World()
    child = attribute(LocalSource("self"), "child")
    destructive = False

    def predicate(box):
        if destructive:
            world.root.__dict__.clear()
            world.root = None
            gc.collect()
        return True

    guards = [
        Guard(child, GuardKind.PREDICATE, predicate),
        Guard(AttrSource(attribute(child, "child"), "x"), GuardKind.EQUALS, 3),
    ]
    tree = build_guard_tree(guards, world.function)
    for _ in range(WARM):
        assert tree.check(world.arguments(), world.function)
    destructive, y = True, world.y
    assert tree.check((world.root, y), world.function) in (True, False)  # nothing crashes


def test_relations_with_arguments_are_looked_at_in_every_call():
    world = World()
    child = attribute(LocalSource("self"), "child")
    tree = build_guard_tree(
        [Guard(child, GuardKind.DISTINCT, LocalSource("y")), Guard(child, GuardKind.TYPE, Box)], world.function
    )
    for _ in range(WARM):
        assert tree.check((world.root, 5), world.function)
    assert not tree.check((world.root, world.root.child), world.function)
    assert tree.check((world.root, 6), world.function)
