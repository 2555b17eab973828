"""The floors of the house: who may import whom, and what the product never imports. Checked on the parsed source."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "stator"

# Each floor imports only from floors before it; names in one tuple are siblings that never import each other.
FLOORS: list[tuple[str, ...]] = [
    ("base",),
    ("shapes",),
    ("prims",),
    ("graph",),
    ("runtime",),
    ("dynamo", "aot", "inductor"),
    ("distributed",),
    ("pipeline",),
    ("export",),
    ("backends",),
    ("ecosystem",),
    ("tools",),
    ("compiled_module",),
    ("frozen_module",),
    ("control",),
    ("api",),
    ("public",),
    ("__init__",),
    ("__main__",),
]
RANK = {name: rank for rank, floor in enumerate(FLOORS) for name in floor}

# The rooms of each floor: a room imports only from rooms before it. Modules that stand in no room here, such as the
# entry points of aot, come behind the rooms.
ROOMS: dict[str, tuple[str, ...]] = {
    "prims": ("record", "special", "shape_rules", "decompositions", "operators"),
    "graph": ("ir", "fake", "functionalization", "operators", "tracing", "subgraphs"),
    "dynamo": (
        "bytecode",
        "host",
        "guards",
        "ir",
        "codegen",
        "cache",
        "values",
        "graph",
        "interpreter",
        "handlers",
        "capture",
        "frame_compiler",
    ),
    "aot": ("runtime", "trace", "partition", "autograd"),
    "inductor": (
        *("devices", "sizes", "loops", "buffers", "passes", "lower", "schedule", "program", "codegen"),
        "program_cache",
    ),
}

REPLACED = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch.export",
    "torch._export",
    "torch._subclasses",
    "torch.fx.experimental",
    "torch._meta_registrations",
)

FILES = sorted(ROOT.rglob("*.py"))
NATIVE_FILES = sorted(path for path in ROOT.rglob("csrc/*") if path.suffix in (".c", ".h"))
MOST_LINES = 600
MOST_FILES = 22  # in a folder, headers aside; one that holds more is several rooms
MOST_NATIVE_LINES = {".c": 600, ".h": 750}  # headers that generated kernels include are one table of functions each


def floor_of(path: Path) -> str:
    """The floor that a source file stands on: its first folder, or its own name at the top."""
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_modules(path: Path) -> Iterator[tuple[str, bool, int]]:
    """(absolute module name, is the import inside a function, line) of every import in a file."""
    package = ["stator", *path.relative_to(ROOT).parts[:-1]]
    tree = ast.parse(path.read_text())
    nested = {
        inner
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in nested, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{stem}.{alias.name}", node in nested, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_floors_are_respected(path: Path) -> None:
    own = floor_of(path)
    assert own in RANK, f"{path} stands on no floor; add it to docs/architecture.md and to FLOORS"
    for module, nested, line in imported_modules(path):
        parts = module.split(".")
        if parts[0] != "stator":
            continue
        where = f"{path}:{line} imports {module}"
        assert not nested, f"{where} inside a function; import it at the top or move the code"
        other = parts[1] if len(parts) > 1 else "__init__"
        if other not in RANK:  # a name exported by stator/__init__.py itself
            other = "__init__"
        if other != own:
            assert RANK[other] < RANK[own], f"{where}: {own} may not import from {other}"


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    parts = ["stator", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def imports_of(module: str) -> set[str]:
    """The modules of stator that a module imports, imports for type checkers included."""
    found = set()
    for name, _, _ in imported_modules(MODULES[module]):
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name.startswith("stator.") and name != module:
            found.add(name)
    return found


@pytest.mark.parametrize("floor", ROOMS)
def test_rooms_are_in_order(floor: str) -> None:
    rooms = ROOMS[floor]
    rank = {f"stator.{floor}.{room}": at for at, room in enumerate(rooms)}

    def room_of(module: str) -> str | None:
        return next((room for room in rank if module == room or module.startswith(room + ".")), None)

    for module in MODULES:
        own = room_of(module)
        for other in imports_of(module) if own else ():
            if (room := room_of(other)) is not None:
                assert rank[room] <= rank[own], f"{module} imports {other}, which stands in a later room"


def test_no_modules_import_one_another() -> None:
    """No circle of imports, those for type checkers included."""
    try:
        graphlib.TopologicalSorter({module: imports_of(module) for module in MODULES}).prepare()
    except graphlib.CycleError as circle:
        pytest.fail(" -> ".join(reversed(circle.args[1])))


def test_folders_hold_few_files() -> None:
    counted = [path.parent for path in (*FILES, *NATIVE_FILES) if path.suffix != ".h"]
    for folder in sorted(set(counted)):
        count = counted.count(folder)
        assert count <= MOST_FILES, f"{folder.relative_to(ROOT)} holds {count} files; is it still one room?"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_of_the_replaced_stack_is_imported(path: Path) -> None:
    for module, _, line in imported_modules(path):
        for replaced in REPLACED:
            assert module != replaced and not module.startswith(replaced + "."), f"{path}:{line} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_say_what_they_hold_and_stay_small(path: Path) -> None:
    text = path.read_text()
    if text.strip() and path.name != "__init__.py":
        assert ast.get_docstring(ast.parse(text)), f"{path} does not say what lives there"
    lines = text.count("\n")
    assert lines <= MOST_LINES, f"{path} has {lines} lines; is it still one concept?"
    assert path.stem not in {"utils", "helpers", "misc", "common"}, f"{path}: name a file by its concept"


@pytest.mark.parametrize("path", NATIVE_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_native_files_stay_small(path: Path) -> None:
    lines = path.read_text().count("\n")
    most = MOST_NATIVE_LINES[path.suffix]
    assert lines <= most, f"{path} has {lines} lines; is it still one concept?"


# a C file or header includes headers of parts that stand before it here, and its own
NATIVE_ORDER = (
    *(
        "cpython_compat",
        "tensor_impl",
        "native",
        "dict_states",
        "state",
        "switches",
        "deferred_exceptions",
    ),
    *("current_frame", "binding", "guards", "guard_values", "guard_tensors", "guard_sizes", "guard_tree"),
    *("guard_memo", "guard_build"),
    *("hook_chain", "cache", "own_code_exit", "continuation", "entry", "frame_hook"),
    *("tensor_address", "tensor_lists", "torch_c", "result_tensors", "sized_call", "step_call", "launch"),
    *("driver", "kernel", "products", "segment"),
)
NATIVE_PARTS = [path for path in NATIVE_FILES if not path.name.startswith("vec")]
INCLUDE = re.compile(r'^#include ["<](.*?)\.h[">]', re.MULTILINE)


@pytest.mark.parametrize("path", NATIVE_PARTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_native_parts_stand_in_an_order(path: Path) -> None:
    own = {part.stem for part in NATIVE_PARTS}
    allowed = NATIVE_ORDER[: NATIVE_ORDER.index(path.stem) + (path.suffix == ".c")]
    included = [name for name in INCLUDE.findall(path.read_text()) if name in own]
    assert [name for name in included if name not in allowed] == []


@pytest.mark.parametrize("path", NATIVE_PARTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_one_header_knows_the_insides_of_cpython(path: Path) -> None:
    text = path.read_text()
    knows = [word for word in ("internal/pycore_", "Py_BUILD_CORE", "PY_VERSION_HEX") if word in text]
    assert bool(knows) == (path.name == "cpython_compat.h"), f"{path} names {knows}"


def test_test_files_have_names_of_their_own() -> None:
    """pytest imports them by their bare names, so that two of one name cannot be collected together."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
