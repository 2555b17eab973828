"""What classes list as their subclasses when captured code makes some: as in eager, never what stands for a class while
code is captured. Each program is run as it is and compiled, on classes of its own."""

import abc
import dataclasses
import gc

import pytest
import torch

import stator

X = torch.arange(3.0)


class Plain:
    pass


class Hooked:
    told = []

    def __init_subclass__(cls, **named):
        super().__init_subclass__(**named)
        Hooked.told.append((cls.__name__, [one.__name__ for one in Hooked.__subclasses__()]))


class Abstract(abc.ABC):
    @abc.abstractmethod
    def rest(self):
        pass


class Function(torch.autograd.Function):
    pass


BASES = (Plain, Hooked, Abstract, Function)


def _listed():
    """The names of all subclasses, at any depth."""

    def below(cls):
        return [(one.__name__, below(one)) for one in cls.__subclasses__()]

    return [below(base) for base in BASES]


def unused(x):
    class Child(Plain):
        pass

    return x + 1, [one.__name__ for one in Plain.__subclasses__()]


def dropped(x):
    class Child(Plain):
        pass

    del Child
    x = x + 1
    gc.collect()
    return x, [one.__name__ for one in Plain.__subclasses__()]


def dropped_from_a_class_made_here(x):
    class Parent:
        pass

    before = list(Parent.__subclasses__())

    class Child(Parent):
        pass

    between = [one is Child for one in Parent.__subclasses__()]
    del Child
    gc.collect()
    return x + 1, before, between, Parent.__subclasses__()


def of_a_child(x):
    class Child(Plain):
        pass

    class Grandchild(Child):
        pass

    return x + 1, _listed()


def in_order(x):
    class First(Plain):
        pass

    class Second(Plain):
        pass

    class Third(Plain):
        pass

    return x + 1, _listed(), Second


def nothing_asked(x):
    class Child(Plain):
        size = 2

    return x * Child.size


def with_a_tensor(x):
    class Child(Plain):
        doubled = x * 2

    return x + 1, [one.doubled for one in Plain.__subclasses__()]


def hooks(x):
    class Child(Hooked):
        pass

    return x + Child().told.__len__()


def abstract(x):
    class Child(Abstract):
        @abc.abstractmethod
        def work(self):
            pass

    return x + len(Child.__abstractmethods__), _listed()


def dataclass(x):
    @dataclasses.dataclass
    class Point(Plain):
        at: int

    return x + Point(2).at, _listed()


def slots(x):
    @dataclasses.dataclass(slots=True)
    class Point(Plain):
        at: int

    return x + Point(2).at, _listed()


def function(x):
    class Double(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    return Double.apply(x), _listed()


def failing_capture(x):
    class Child(Plain):
        pass

    x = x + 1
    gc.collect()  # ends the graph
    return x, isinstance(Child(), Plain), len(Plain.__subclasses__())


PROGRAMS = (unused, dropped, dropped_from_a_class_made_here, of_a_child, in_order, nothing_asked, with_a_tensor, hooks)
PROGRAMS += (abstract, dataclass, slots, function, failing_capture)


# those where nothing is compiled behind a break: what is compiled there relies on the class, and keeps it
RELEASED = (unused, dropped, dropped_from_a_class_made_here, nothing_asked, failing_capture)


def _run(program):
    """What it gives and makes the classes list, and what they list when nothing holds that any more."""
    stator.reset()
    gc.collect()
    Hooked.told.clear()
    result = program(X.clone())
    seen = _plain(result), _listed(), list(Hooked.told)
    del result
    gc.collect()
    return seen, _listed()


def _plain(part):
    if isinstance(part, (tuple, list)):
        return [_plain(one) for one in part]
    return part.tolist() if isinstance(part, torch.Tensor) else part.__name__ if isinstance(part, type) else part


# code that is captured with a class as a constant keeps that class: code without tensors runs as it is here
OWN_CODE = pytest.mark.parametrize("keep_empty_graphs", [False], ids=["own_code"], indirect=True)


@OWN_CODE
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_subclasses_are_listed_as_in_eager(program, keep_empty_graphs):
    gc.disable()  # classes stay listed until they are collected: only where the program asks for it
    try:
        expected = _run(program)
        compiled = stator.compile(program, backend="eager")
        assert _run(compiled)[0] == expected[0]
    finally:
        gc.enable()


@OWN_CODE
@pytest.mark.parametrize("program", RELEASED, ids=lambda program: program.__name__)
def test_classes_that_were_made_are_not_kept(program, keep_empty_graphs):
    gc.disable()
    try:
        expected = _run(program)
        compiled = stator.compile(program, backend="eager")
        for call in ("first", "second"):
            assert _run(compiled) == expected, call
    finally:
        gc.enable()


def test_nothing_keeps_a_class_that_was_made():
    def program(x):
        class Child(Plain):
            pass

        return x + 1, Child

    compiled = stator.compile(program, backend="eager")
    for _ in range(3):
        compiled(X)
    gc.collect()
    assert Plain.__subclasses__() == []
