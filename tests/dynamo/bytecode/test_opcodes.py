"""Every instruction of the running interpreter has a handler, or a reason why captured code never reaches it."""

from __future__ import annotations

import dis
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from stator.dynamo import capture
from stator.dynamo.ir.prepared_code import opcodes

assert capture  # importing it fills the registry

_MODULE_LEVEL = "only in code of modules and classes, or in scopes for annotations in classes"
_UNREAD = "made by the compiler or the interpreter for itself: no code object shows it"
_GROUPS = "groups of exceptions are handled natively"
_ASYNCHRONOUS = "only in asynchronous generators, which run natively"
_PATTERNS = "patterns with classes run natively"

# Opcodes of any version that have no handler, and why.
WITHOUT = {
    "ASYNC_GEN_WRAP": _ASYNCHRONOUS,
    "CALL_INTRINSIC_2": _GROUPS,
    "CHECK_EG_MATCH": _GROUPS,
    "DELETE_NAME": _MODULE_LEVEL,
    "ENTER_EXECUTOR": _UNREAD,
    "EXIT_INIT_CHECK": _UNREAD,
    "IMPORT_STAR": _MODULE_LEVEL,
    "INTERPRETER_EXIT": _UNREAD,
    "JUMP": _UNREAD,
    "LOAD_CLASSDEREF": _MODULE_LEVEL,
    "LOAD_FROM_DICT_OR_DEREF": _MODULE_LEVEL,
    "LOAD_FROM_DICT_OR_GLOBALS": _MODULE_LEVEL,
    "LOAD_LOCALS": _MODULE_LEVEL,
    "LOAD_NAME": _MODULE_LEVEL,
    "LOAD_SUPER_METHOD": _UNREAD,
    "LOAD_ZERO_SUPER_ATTR": _UNREAD,
    "LOAD_ZERO_SUPER_METHOD": _UNREAD,
    "MATCH_CLASS": _PATTERNS,
    "POP_BLOCK": _UNREAD,
    "PREP_RERAISE_STAR": _GROUPS,
    "PRINT_EXPR": _MODULE_LEVEL,
    "RESERVED": _UNREAD,
    "SETUP_ANNOTATIONS": _MODULE_LEVEL,
    "STORE_NAME": _MODULE_LEVEL,
}


def of_the_interpreter() -> list[str]:
    """Without those that it puts in place of others by itself: for observers, and of blocks that tables replaced."""
    return [name for name in dis.opmap if not name.startswith(("INSTRUMENTED_", "SETUP_", "LOAD_METHOD", "<"))]


def test_every_opcode_has_a_handler_or_a_reason() -> None:
    assert sorted(name for name in of_the_interpreter() if name not in opcodes and name not in WITHOUT) == []


def test_no_reason_is_given_for_an_opcode_that_has_a_handler() -> None:
    assert [name for name in WITHOUT if name in opcodes] == []


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def _library() -> list[Path]:
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


def _in_functions(paths: list[Path]) -> dict[str, str]:
    """Opcodes of code of functions, each with a place where it stands."""
    found: dict[str, str] = {}
    for path in paths:
        for code in codes(compile(path.read_bytes(), str(path), "exec")):
            if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<generic parameters of "):
                for instruction in dis.get_instructions(code):
                    found.setdefault(instruction.opname, f"{path.name}:{code.co_qualname}")
    return found


def _check(paths: list[Path]) -> None:
    allowed = {name for name, reason in WITHOUT.items() if reason in (_ASYNCHRONOUS, _PATTERNS)}
    met = _in_functions(paths)
    assert len(met) > 50
    assert {name: place for name, place in met.items() if name not in opcodes and name not in allowed} == {}


def test_functions_of_the_library_use_none_without_a_handler() -> None:
    _check([path for path in _library() if path.stat().st_size < 12_000][:60])


@pytest.mark.slow
def test_functions_of_torch_and_of_the_whole_library_use_none_without_a_handler() -> None:
    torch = Path(sys.modules["torch"].__file__ or "").parent
    _check([*_library(), *sorted(torch.glob("nn/**/*.py")), *sorted(torch.glob("optim/*.py"))])
