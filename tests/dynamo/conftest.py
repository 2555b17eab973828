"""Tests of capture judge what capture makes of a program. So that programs without tensors are judged, too, their code
is replaced here, which users only get where there is something to compile; and some tests run both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stator.base import config

# modules whose tests also run as users get it: a part of a frame that does nothing with tensors runs as it is
BOTH_WAYS = frozenset(
    {
        "test_breaks_at_any_position",
        "test_breaks_inside_displays",
        "test_errors_in_captured_code",
        "test_random_python",
    }
)


def pytest_generate_tests(metafunc: Any) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS:
        metafunc.parametrize("keep_empty_graphs", [True, False], ids=["replaced", "own_code"], indirect=True)


@pytest.fixture(autouse=True)
def keep_empty_graphs(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(config, "keep_empty_graphs", getattr(request, "param", True))
    yield
