"""The worked example of docs/operators.md runs as it is printed there, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def blocks() -> list[str]:
    text = PAGE.read_text()
    section = text[text.index("<!-- example:") : text.index("<!-- end of the example -->")]
    return re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "example.py"
    path.write_text(program)
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, check=False)


def test_the_worked_example_runs(tmp_path: Path) -> None:
    assert len(blocks()) == 7
    result = run("\n".join(blocks()), tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr, result.stderr


def test_the_example_fuses_by_its_decomposition_alone(tmp_path: Path) -> None:
    program = [block for block in blocks() if "prims.lowering" not in block]
    assert len(program) == 6
    result = run("\n".join(program), tmp_path)
    assert result.returncode == 0, result.stderr
