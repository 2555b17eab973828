"""The examples of docs/ecosystem.md run, each by itself, where the libraries that it imports are installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from benchmarks.models import import_torchvision

DOCUMENT = Path(__file__).parent.parent / "docs" / "ecosystem.md"
TEXT = DOCUMENT.read_text()
EXAMPLES = dict(re.findall(r"^## ([^\n]*)\n\n```python\n(.*?)```", TEXT, re.M | re.S))
IMPORTED = re.compile(r"^(?:from|import) ([\w., ]+)", re.M)


def libraries(block: str) -> list[str]:
    """The packages that the block imports, without torch and stator."""
    names = {
        name.strip().split(".")[0] for line in IMPORTED.findall(block) for name in line.split(" import")[0].split(",")
    }
    return sorted(names - {"torch", "stator"})


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_holds(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = EXAMPLES[title]
    missing = [name for name in libraries(block) if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    import_torchvision()
    monkeypatch.chdir(tmp_path)
    line = TEXT[: TEXT.index(block)].count("\n")
    exec(compile("\n" * line + block, str(DOCUMENT), "exec"), {"__name__": "examples"})


def test_every_library_has_an_example() -> None:
    found = {name for block in EXAMPLES.values() for name in libraries(block)}
    assert found == {
        "accelerate",
        "diffusers",
        "lightning",
        "peft",
        "timm",
        "torch_geometric",
        "torchao",
        "transformers",
    }
