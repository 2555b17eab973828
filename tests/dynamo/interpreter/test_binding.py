"""Class methods of what is no plain function, and static and class methods as objects, captured or not."""

import functools
import types

import pytest
import torch

import stator

X = torch.arange(3.0)


class Bound:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner=None):
        return types.MethodType(self.function, owner or type(instance))


class Called:
    def __call__(self, cls):
        return cls.__name__


CALLED = Called()


def made_inside():
    class Held:
        @classmethod
        @classmethod
        def of_class_method(cls):
            return cls.__name__

        @classmethod
        @property
        def of_property(cls):
            return 3

        @classmethod
        @staticmethod
        def of_static_method(*args):
            return len(args)

        @classmethod
        @functools.lru_cache
        def of_cached(cls):
            return cls.__name__

        @classmethod
        @Bound
        def of_descriptor(cls):
            return cls.__name__

        of_method = classmethod([1, 2].__contains__)
        of_bound = classmethod(types.MethodType(lambda *args: len(args), 1))
        of_object = classmethod(CALLED)

    return Held


Held = made_inside()
NAMES = [name for name in vars(Held) if name.startswith("of_")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("get", [lambda: Held, made_inside], ids=["outside", "inside"])
@pytest.mark.parametrize("instance", [False, True])
def test_class_method(get, name, instance):
    def program(x):
        cls = get()
        found = getattr(cls() if instance else cls, name)
        return x + 1, found() if callable(found) else found

    def outcome(function):
        try:
            shown = function(X)
        except TypeError as error:
            return str(error)
        return shown[0].tolist(), shown[1]

    stator.reset()
    expected = outcome(program)
    assert outcome(stator.compile(program, backend="eager")) == expected


@pytest.mark.parametrize("name", ["of_class_method", "of_static_method", "of_descriptor"])
def test_class_method_through_super(name):
    class Derived(Held):
        def read(self):
            return getattr(super(), name)

    def program(x):
        return x + 1, Derived().read()()

    stator.reset()
    try:
        expected = program(X)[1]
    except TypeError:  # CPython 3.13 binds them without asking
        with pytest.raises(TypeError):
            stator.compile(program, backend="eager")(X)
        return
    assert stator.compile(program, backend="eager")(X)[1] == expected


def test_cached_class_method_is_captured():
    def program(x):
        Held.of_cached()
        return x + 1

    stator.reset()
    assert stator.compile(program, fullgraph=True, backend="eager")(X).tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_attributes_of_a_method_object(kind):
    def program(x):
        def function(y: int):
            """What it does."""
            return y

        made = kind(function)
        same = [made.__func__ is function, made.__wrapped__ is function]
        same.append(made.__annotations__ is function.__annotations__)
        return x + 1, same, made.__annotations__, made.__name__, made.__qualname__, made.__doc__, made.__module__

    stator.reset()
    assert stator.compile(program, backend="eager")(X)[1:] == program(X)[1:]


@pytest.mark.parametrize("kind", [staticmethod, classmethod, property, functools.cached_property])
@pytest.mark.parametrize("name", ["__doc__", "__name__"])
def test_a_descriptor_keeps_what_it_copied(kind, name):
    def program(x):
        def function(y):
            """What it does."""

        made = kind(function)
        setattr(function, name, "later")
        return x + 1, made, function

    def shown(made):
        return [getattr(one, name, None) for one in made[1:]]

    stator.reset()
    assert shown(stator.compile(program, backend="eager")(X)) == shown(program(X))


class Owner:
    def method(self, x):
        return x * self.factor

    factor = 2


class Holder:
    factor = 5
    of_another = Owner().method


@pytest.mark.parametrize("kind", ["made", "given", "in_class"])
def test_a_method_binds_as_the_interpreter_binds_it(kind):
    """Since CPython 3.13 a method's `__get__` returns the method; before, it was that of the function."""
    given = Owner().method

    def program(x, holder):
        if kind == "in_class":
            return holder.of_another(x) + Holder.of_another(x)
        method = Owner().method if kind == "made" else given
        return method.__get__(holder, Holder)(x)

    compiled = stator.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X, Holder()), program(X, Holder()))
