"""Decoding and assembling the standard library gives the same code; rebuilt code behaves the same. On every version."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dynamo.interpreters import OTHER_VERSIONS, run_script

import stator.dynamo.bytecode

SCRIPT = Path(__file__).parent / "roundtrip.py"
PACKAGE = Path(stator.dynamo.bytecode.__file__).parent


@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_standard_library_survives_decoding_and_assembling(version: str) -> None:
    word, count = run_script(version, SCRIPT, str(PACKAGE)).split()
    assert word == "ok" and int(count) > 500
