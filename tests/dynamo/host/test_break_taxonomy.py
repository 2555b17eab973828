"""docs/graph-breaks.md lists exactly the kinds of graph breaks that the code gives, each with what to do about it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import stator
from stator.dynamo.host.break_kinds import HINTS, REFUSAL_HINTS, break_hint

SOURCE = Path(stator.__file__).parent
DOCS = (SOURCE.parent.parent / "docs" / "graph-breaks.md").read_text()
RAISERS = {"unsupported", "Unsupported", "DataDependent", "_breaking"}


def kinds_in(path):
    """First arguments of whatever makes an Unsupported: constants, or a choice between constants."""
    found: set[str] = set()
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "nsupported(" in text or "DataDependent(" in text else ():
        if isinstance(node, ast.Call) and node.args:
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            found.update(constants_of(node.args[0]) if name in RAISERS else ())
    return found


def constants_of(node):
    if isinstance(node, ast.IfExp):
        return [*constants_of(node.body), *constants_of(node.orelse)]
    return [node.value] if isinstance(node, ast.Constant) else []


def raised_in(*folders):
    paths = [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    return set().union(*map(kinds_in, paths))


def documented(part):
    """Kind -> way out, of the table under this heading."""
    table = DOCS.split(f"\n## {part}\n")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines() if row.startswith("| `")]
    found = [(kind, row[2].replace("`", "")) for row in rows for kind in re.findall(r"`([\w-]+)`", row[0])]
    assert len(found) == len(dict(found)), "a kind is listed twice"
    return dict(found)


def test_kinds_of_breaks_are_those_that_capture_raises():
    assert set(documented("Kinds")) == raised_in("dynamo") | {"reconstruct"}


def test_kinds_of_refusals_are_those_of_later_stages():
    later = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"dynamo"}
    assert set(documented("Kinds of refusals behind capture")) == raised_in(*later) - raised_in("dynamo")


def test_each_kind_has_the_way_out_that_the_documentation_gives():
    assert documented("Kinds") == HINTS
    assert all(HINTS.values())


def test_each_kind_of_refusal_has_the_way_out_that_the_documentation_gives():
    assert documented("Kinds of refusals behind capture") == REFUSAL_HINTS
    assert break_hint("data-dependent", None) == REFUSAL_HINTS["data-dependent"]
