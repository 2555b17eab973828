"""Frames left at every step by emitted code and finished by resume functions do what they did. On every version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stator

sys.path.insert(0, str(Path(__file__).parent))
from interpreters import OTHER_VERSIONS, run_script

SCRIPT = Path(__file__).parent / "break_everywhere.py"
SOURCE = Path(stator.__file__).parent.parent


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_a_frame_can_be_left_at_every_step(version: str) -> None:
    word, count = run_script(version, SCRIPT, str(SOURCE)).split()
    assert word == "ok" and int(count) > 350
