"""Random Python programs do the same compiled as interpreted: results, side effects in order, exceptions."""

import os
import traceback
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.dynamo.interpreter.random_python import arguments, namespace, programs
from torch.utils import _pytree as pytree

import stator

EXAMPLES = int(os.environ.get("STATOR_TEST_EXAMPLES", "100"))
CALLS = 3  # of the same compiled function: the first ones compile, the others meet what was compiled


def outcome(function: Any, log: list[Any], scope: dict[str, Any]) -> list[Any]:
    """Everything that can be seen of one call. The lines of the program that an exception came through, too."""
    given_ = arguments()
    start = len(log)
    try:
        result = ("value", function(*given_))
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<program>"]
        chain = [type(link).__name__ for link in (error.__cause__, error.__context__)]
        result = ("raised", type(error).__name__, str(error), lines, chain)
    *plain, thing = given_
    leaves, structure = pytree.tree_flatten([result, plain, vars(thing), scope["g"], log[start:]])
    return [*leaves, structure]


def outcomes(source: str, compiled: bool) -> list[list[Any]]:
    log: list[Any] = []
    scope = namespace(log)
    exec(compile(source, "<program>", "exec"), scope)
    function = stator.compile(scope["program"], backend="eager") if compiled else scope["program"]
    return [outcome(function, log, scope) for _ in range(CALLS)]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


@pytest.mark.filterwarnings("error:stator")  # an error of the compiler would be hidden by its running eagerly
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(programs())
def test_random_programs_do_as_interpreted(source: str) -> None:
    expected, found = outcomes(source, compiled=False), outcomes(source, compiled=True)
    for turn, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert len(one) == len(other) and all(map(same, one, other)), f"call {turn} of\n{source}\n{one}\n{other}"
