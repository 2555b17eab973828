"""Every way to change a dict is noticed by a memo of guards that looked at it, and nothing outlives the dicts.

Runs without torch and without pytest's features, so that test_interpreters.py can run it under other interpreters.
"""

import builtins
import collections
import gc
import threading
import types

from stator.dynamo.guards.guard import Guard, GuardKind
from stator.dynamo.guards.guard_tree import build_guard_tree
from stator.dynamo.guards.source import BuiltinSource, GlobalSource, InstanceDictSource, ItemSource, LocalSource


class Box:
    pass


def function_over(namespace):
    return types.FunctionType((lambda box: box).__code__, namespace)


def tree_over(function, source, value=1):
    return build_guard_tree([Guard(source, GuardKind.EQUALS, value)], function)


def warm(tree, *arguments, function):
    """Afterwards a memo stands for the tree."""
    for _ in range(5):
        assert tree.check(arguments, function)
    assert tree.memo_hits >= 2


WAYS = {
    "item": lambda table: table.__setitem__("x", 2),
    "deletion": lambda table: table.__delitem__("x"),
    "pop": lambda table: table.pop("x"),
    "popitem": lambda table: [table.popitem() for _ in range(len(table))],
    "clear": lambda table: table.clear(),
    "update": lambda table: table.update({"x": 2}),
    "union": lambda table: table.__ior__({"x": 2}),
    "init": lambda table: table.__init__(x=2),
    "clone": lambda table: (table.clear(), table.update({"x": 2})),
    "setdefault": lambda table: (table.pop("x"), table.setdefault("x", 2)),
    "dict.update of a subclass": lambda table: dict.update(table, x=2),
    "statement": lambda table: exec("x = 2", table) if type(table) is dict else table.update(x=2),
    "global statement": lambda table: (
        exec("def f():\n global x\n x = 2\nf()", table) if type(table) is dict else table.update(x=2)
    ),
}


def test_each_way_to_change_a_dict_is_noticed():
    for make in (dict, collections.OrderedDict, type("Table", (dict,), {})):
        for way, change in WAYS.items():
            table = make(x=1)
            function = function_over({"table": table, "__builtins__": builtins})
            tree = tree_over(function, ItemSource(GlobalSource("table"), "x"))
            warm(tree, None, function=function)
            change(table)
            assert not tree.check((None,), function), (make, way)
            table["x"] = 1
            warm(tree, None, function=function)


def test_changes_of_globals_and_builtins_are_noticed():
    namespace = {"x": 1, "__builtins__": builtins}
    function = function_over(namespace)
    for way, change in WAYS.items():
        namespace["x"] = 1
        tree = tree_over(function, GlobalSource("x"))
        warm(tree, None, function=function)
        change(namespace)
        assert not tree.check((None,), function), way
    builtins.of_the_dict_states = 1
    try:
        tree = tree_over(function, BuiltinSource("of_the_dict_states"))
        warm(tree, None, function=function)
        builtins.of_the_dict_states = 2
        assert not tree.check((None,), function)
    finally:
        del builtins.of_the_dict_states


def test_attributes_of_instances_modules_and_classes_are_noticed():
    module, box = types.ModuleType("some"), Box()

    class Meta(type):
        pass

    for owner in (module, box, Meta("Some", (), {})):
        owner.x = 1
        function = function_over({"owner": owner})
        tree = tree_over(function, ItemSource(InstanceDictSource(GlobalSource("owner")), "x"))
        warm(tree, None, function=function)
        owner.y = 1
        assert tree.check((None,), function)
        owner.x = 2
        assert not tree.check((None,), function), owner
        owner.x = 1
        warm(tree, None, function=function)
        del owner.x
        assert not tree.check((None,), function), owner


def test_a_dict_at_the_place_of_a_freed_one_is_another():
    box = Box()
    box.x = 1
    function = function_over({})
    tree = tree_over(function, ItemSource(InstanceDictSource(LocalSource("box")), "x"))
    for turn in range(300):
        value = 1 + turn % 4 // 3
        box.__dict__ = {"x": value}  # frees the one before, and may come to lie where that lay
        for _ in range(3):
            assert tree.check((box,), function) == (value == 1)


def test_many_dicts_are_told_apart():
    boxes = [{"x": 1} for _ in range(3000)]
    function = function_over({"boxes": tuple(boxes)})
    guards = [
        Guard(ItemSource(ItemSource(GlobalSource("boxes"), index), "x"), GuardKind.EQUALS, 1)
        for index in range(len(boxes))
    ]
    trees = [build_guard_tree(guards[part::3], function) for part in range(3)]
    for tree in trees:
        warm(tree, None, function=function)
    for index in range(0, len(boxes), 50):
        boxes[index]["x"] = 2
        assert [tree.check((None,), function) for tree in trees] == [index % 3 != part for part in range(3)]
        boxes[index]["x"] = 1
    del trees[0], tree
    gc.collect()
    for box in boxes:
        box["x"] = 2
    assert not any(tree.check((None,), function) for tree in trees)


def test_two_trees_share_the_state_of_a_dict():
    table = {"x": 1}
    function = function_over({"table": table})
    first, second = (tree_over(function, ItemSource(GlobalSource("table"), "x")) for _ in range(2))
    warm(first, None, function=function)
    warm(second, None, function=function)
    del first
    gc.collect()
    assert second.check((None,), function)
    table["x"] = 2
    assert not second.check((None,), function)


def test_changes_by_other_threads_are_noticed():
    tables = [{"x": 1} for _ in range(20)]
    function = function_over({"tables": tuple(tables)})
    guards = [
        Guard(ItemSource(ItemSource(GlobalSource("tables"), index), "x"), GuardKind.EQUALS, 1)
        for index in range(len(tables))
    ]
    tree, done = build_guard_tree(guards, function), threading.Event()

    def churn(first):
        while not done.is_set():
            for table in tables[first::2]:
                table["x"] = 2
                table["x"] = 1

    threads = [threading.Thread(target=churn, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(3000):
        tree.check((None,), function)
    done.set()
    for thread in threads:
        thread.join()
    assert tree.check((None,), function)
    for table in tables:
        table["x"] = 2
        assert not tree.check((None,), function)
        table["x"] = 1
