"""`warnings.catch_warnings` breaks the graph: what is recorded, raised, dropped and shown is eager's, also behind the
block, and the filters are as they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import stator

X = torch.arange(3.0)


class Own(UserWarning):
    pass


def old(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("old() is going", DeprecationWarning, stacklevel=2)
    return x + 1


def dropped(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("not heard", stacklevel=1)
        y = old(x)
    return y * 2


def dropped_by_class(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        y = old(x)
        warnings.warn("heard", stacklevel=1)
    warnings.warn("heard too", Own, stacklevel=1)
    return y * 2


def dropped_by_text(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*going")
        y = old(x)
        warnings.warn("heard", stacklevel=1)
    return old(y) * 2


def told() -> None:
    warnings.warn("told() is going", DeprecationWarning, stacklevel=2)


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        told()
        warnings.warn(Own("mine"), stacklevel=1)
    return x + len(log), [(str(one.message), one.category, one.lineno, one.filename, one.source) for one in log], log


def recorded_and_dropped(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)
        told()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("inner", stacklevel=1)
        warnings.warn("outer", stacklevel=1)
    return x + 1, [str(one.message) for one in log]


def raised(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            old(x)
        except DeprecationWarning as error:
            text = str(error)
    return x + 1, text


def entered_twice(x: torch.Tensor) -> Any:
    block = warnings.catch_warnings()
    with block:
        warnings.simplefilter("ignore")
    try:
        with block:
            pass
    except RuntimeError as error:
        return x + 1, str(error)
    return None


OTHERS = [dropped, dropped_by_class, dropped_by_text, recorded, recorded_and_dropped, raised, entered_twice]


def broken_inside(x: torch.Tensor) -> Any:
    y = x * 2
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        y = old(y)
        stator.graph_break()
        y = old(y)
    return y, [str(one.message) for one in log]


def recorded_beside_operators(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        y = old(x)
        warnings.warn(Own("mine"), stacklevel=1)
    return y + len(log), [(str(one.message), one.category, one.lineno) for one in log]


def raised_by_an_operator(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return torch.nn.functional.softmax(x)  # the dimension is not said
        except UserWarning:
            return x * 0


def shown_inside(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        y = old(x)
    return y


def leaving_by_an_exception(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return old(x)


def filters_read(x: torch.Tensor) -> Any:
    before = len(warnings.filters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Own)
        return x + len(warnings.filters) - before


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, warnings.WarningMessage):
        return str(value)
    return [shown(one) for one in value] if isinstance(value, (list, tuple)) else value


def run(function: Callable[..., Any], default: str) -> Any:
    """What each call gives, and the warnings of all."""
    globals().pop("__warningregistry__", None)
    found = []
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter(default)  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", module="torch")
        filters = list(warnings.filters)
        for call in range(3):
            try:
                found.append(shown(function(X + call)))
            except Warning as error:
                found.append(repr(error))
            assert filters == warnings.filters
    return found, [(str(one.message), one.category, one.lineno) for one in log]


@pytest.mark.parametrize("default", ["default", "always"])
@pytest.mark.parametrize(
    "function",
    [
        *OTHERS,
        broken_inside, recorded_beside_operators, raised_by_an_operator, shown_inside, leaving_by_an_exception,
        filters_read,
    ],
    ids=lambda one: one.__name__,
)  # fmt: skip
def test_as_in_eager(function: Any, default: str) -> None:
    stator.reset()
    expected = run(function, default)
    assert run(stator.compile(function, backend="eager"), default) == expected
