"""A graph break in the middle of a display or a call with unpacked arguments: the container under way is not lost."""

import pytest
import torch

import stator


def in_list(x):
    return [x + 1, *(x, x), *range(native(2)), x * 2]


def in_set(x):
    return {1, *range(native(3)), 7}, x + 1


def in_dict(x):
    return {"a": x + 1, **{"b": x}, **dict(c=native(3)), "d": x * 2}


def in_call(x):
    return collect(x, *(x, x), **{"a": 1}, **dict(b=native(2)))


def in_format_of_locals(x, name="n"):
    return "{name}".format(**locals()), x + 1


def in_comprehension(x):
    return [native(i) + x for i in range(3)], {i: native(i) for i in range(2)}, {native(i) for i in range(2)}


def collect(*args, **kwargs):
    return args, kwargs


def native(value):
    return NATIVE(value)


class _Native:
    """A C-level callable that capture does not know."""

    def __new__(cls):
        import operator

        return operator.methodcaller("__add__", 0)


NATIVE = _Native()


@pytest.mark.parametrize("function", [in_list, in_set, in_dict, in_call, in_format_of_locals, in_comprehension])
def test_same_as_eager(function):
    compiled = stator.compile(function, backend="eager")
    x = torch.arange(3.0)
    expected = function(x)
    for _ in range(2):
        actual = compiled(x)
        assert type(actual) is type(expected)
        torch.testing.assert_close(flat(actual), flat(expected), rtol=0, atol=0)


def flat(value):
    if isinstance(value, dict):
        return [flat([key, item]) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return torch.tensor(sorted(value)) if isinstance(value, set) else value if torch.is_tensor(value) else hash(value)


def comprehension_variable_in_a_closure(x):
    multiples = [lambda: native(i) * x for i in range(3)]
    i = 10
    return [multiple() for multiple in multiples], i


def test_the_outer_variable_of_a_comprehension_is_another():
    compiled = stator.compile(comprehension_variable_in_a_closure, backend="eager")
    x = torch.arange(3.0)
    for _ in range(2):
        torch.testing.assert_close(flat(compiled(x)), flat(comprehension_variable_in_a_closure(x)), rtol=0, atol=0)


def test_a_cell_as_an_argument():
    import types

    def add(cell, x):
        return cell, x + 1

    compiled = stator.compile(add, backend="eager")
    for cell in (types.CellType(1), types.CellType()):
        got, result = compiled(cell, torch.ones(2))
        assert got is cell and torch.equal(result, torch.full((2,), 2.0))
