"""Attributes of modules that a function of the module makes when asked for them (`__getattr__`): it is followed like
any other call, and what it does happens in each call of the program."""

from __future__ import annotations

import types
import typing
import warnings
from typing import Any

import pytest
import torch

import stator

SOURCE = """
import warnings
asked = []
def __getattr__(name):
    if name == "old":
        warnings.warn("old is deprecated", DeprecationWarning, stacklevel=2)
        return 3.0
    if name == "counted":
        asked.append(name)
        return float(len(asked))
    if name == "kept":
        globals()[name] = 5.0
        return 5.0
    raise AttributeError(f"no {name}")
"""


@pytest.fixture
def lazy() -> types.ModuleType:
    module = types.ModuleType("lazy")
    exec(SOURCE, vars(module))
    return module


def test_a_warning_that_it_gives_shows_the_program_s_line_in_each_call(lazy):
    def program(x: Any) -> Any:
        return x * lazy.old

    compiled = stator.compile(program, backend="eager")
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 3.0))
        assert [(one.filename, one.lineno) for one in caught] == [(__file__, program.__code__.co_firstlineno + 1)]


def test_what_it_counts_is_what_the_program_asked(lazy):
    def program(x: Any) -> Any:
        return x * lazy.counted

    compiled = stator.compile(program, backend="eager")
    for call in (1.0, 2.0, 3.0):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), call))
    assert lazy.asked == ["counted"] * 3


def test_what_it_keeps_is_read_from_then_on(lazy):
    def program(x: Any) -> Any:
        return x * lazy.kept

    compiled = stator.compile(program, backend="eager")
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert vars(lazy)["kept"] == 5.0
    lazy.kept = 6.0
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 6.0))


def test_what_it_has_not_got_is_the_program_s_error(lazy):
    def program(x: Any) -> Any:
        try:
            return x * lazy.missing
        except AttributeError:
            return x + 1

    torch.testing.assert_close(stator.compile(program, backend="eager")(torch.zeros(2)), torch.ones(2))


def test_a_type_hint_without_a_hash_is_no_key():
    def program(x: Any) -> Any:
        try:
            return {typing.Annotated[int, {}]: x}, False
        except TypeError:
            return x + 1, True

    found, failed = stator.compile(program, backend="eager")(torch.zeros(2))
    assert failed
    torch.testing.assert_close(found, torch.ones(2))
