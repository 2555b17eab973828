"""Fixtures of the tests of emitted code."""

from __future__ import annotations

import pytest

import stator
from stator.aot.partition import call_costs
from stator.base import config


@pytest.fixture
def small_graphs(keep_empty_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph on little data gains, whatever its calls are estimated to cost."""
    monkeypatch.setattr(config, "keep_empty_graphs", False)
    monkeypatch.setattr(call_costs, "LITTLE_DATA", 1 << 15)
    monkeypatch.setattr(call_costs, "MUCH_DATA", 1 << 18)
    monkeypatch.setattr(call_costs, "gains", lambda calls: False)
    stator.reset()
