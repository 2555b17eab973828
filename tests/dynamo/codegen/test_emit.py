"""Frames left at every step by emitted code and finished by resume functions do what they did. On every version."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dynamo.interpreters import OTHER_VERSIONS, run_script

import stator

SCRIPT = Path(__file__).parent / "break_everywhere.py"
SOURCE = Path(stator.__file__).parent.parent


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_a_frame_can_be_left_at_every_step(version: str) -> None:
    word, count = run_script(version, SCRIPT, str(SOURCE)).split()
    assert word == "ok" and int(count) > 250
