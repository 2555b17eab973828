"""Every kind of graph break that capture can name is explained in docs/graph-breaks.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
RAISERS = {"unsupported", "Unsupported", "CannotRebuild"}


def kinds_in_source() -> set[str]:
    found = set()
    for path in (ROOT / "src/stator/dynamo").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISERS and node.args:
                literals = [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
                found.update(text for text in literals if (isinstance(text, str) and "-" in text) or text in PLAIN)
    return found


DOCUMENT = (ROOT / "docs/graph-breaks.md").read_text()
DOCUMENTED = set(
    re.findall(r"`([a-z-]+)`", "\n".join(line.split("|")[1] for line in DOCUMENT.splitlines() if "|" in line))
)
PLAIN = {kind for kind in DOCUMENTED if "-" not in kind}


def test_every_kind_is_documented():
    kinds = kinds_in_source()
    assert "data-dependent-jump" in kinds and "call-builtin" in kinds
    assert kinds <= DOCUMENTED, f"not in docs/graph-breaks.md: {sorted(kinds - DOCUMENTED)}"


def test_every_documented_kind_exists():
    text = "\n".join(path.read_text() for path in (ROOT / "src/stator").rglob("*.py"))
    assert [kind for kind in sorted(DOCUMENTED) if f'"{kind}"' not in text] == []
