"""Decodes and assembles the standard library's code; run as a script by other interpreters, without torch.

Usage: python roundtrip.py PATH_OF_THE_BYTECODE_PACKAGE. Prints "ok NUMBER_OF_CODE_OBJECTS", or raises.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import opcode
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVERY = 12  # of the library's files, this share is read
FIELDS = ("co_code", "co_consts", "co_names", "co_exceptiontable", "co_varnames", "co_cellvars", "co_freevars")

# instructions that must directly follow the one before, or stand at the very beginning
STAND_CLOSE = (
    "CALL",
    "CLEANUP_THROW",
    "NOT_TAKEN",
    "POP_ITER",
    "COPY_FREE_VARS",
    "END_FOR",
    "END_SEND",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "MAKE_CELL",
    "POP_TOP",
    "PRECALL",
    "RESUME",
    "RETURN_GENERATOR",
    "SEND",
    "YIELD_VALUE",
)


def load_package(folder: str) -> Any:
    """The bytecode package by itself, without its parents, which import torch."""
    spec = importlib.util.spec_from_file_location(
        "bytecode_alone", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["bytecode_alone"] = package
    spec.loader.exec_module(package)
    return package


def code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from code_objects(constant)


def library_files() -> list[Path]:
    folder = Path(os.__file__).parent
    return sorted(folder.glob("*.py"))[::EVERY] + sorted((folder / "asyncio").glob("*.py"))


def owning(bytecode: Any, code: types.CodeType) -> types.CodeType:
    """The code with loads that own their references in the place of those that borrow them, as decoding gives them."""
    data = bytearray(code.co_code)
    at = 0
    while at < len(data):
        name = opcode.opname[data[at]]
        at_next = at + 2 * (1 + bytecode.version.CACHES[data[at]])
        data[at] = opcode.opmap[bytecode.VERSION.borrowing.get(name, name)]
        at = at_next
    return code.replace(co_code=bytes(data))


def check_unchanged(bytecode: Any, code: types.CodeType) -> None:
    """Assembled without a change, everything but the stack size (which may be 1 where 0 would do) is the same."""
    again = bytecode.assemble(bytecode.decode(code), code)
    code = owning(bytecode, code)
    for field in FIELDS:
        assert getattr(again, field) == getattr(code, field), f"{code.co_qualname}: {field} differs"
    assert list(again.co_positions()) == list(code.co_positions()), f"{code.co_qualname}: positions differ"
    assert code.co_stacksize <= again.co_stacksize <= code.co_stacksize + 1, f"{code.co_qualname}: stack size"


def rebuilt(bytecode: Any, code: types.CodeType) -> types.CodeType:
    """The same code with fresh tables of names and constants, every operand found again from its meaning, and a NOP
    before each instruction, so that all distances and offsets differ."""
    instructions = bytecode.decode(code)
    made = []
    for instruction in instructions:
        if bytecode.OPERAND_KINDS.get(instruction.opname) is not None:
            instruction.arg = None
        nop = bytecode.Instruction("NOP", handler=instruction.handler, position=instruction.position)
        made += [instruction] if instruction.opname in STAND_CLOSE else [nop, instruction]
    consts = [rebuilt(bytecode, value) if isinstance(value, types.CodeType) else value for value in code.co_consts]
    replaced = dict(zip(map(id, code.co_consts), consts, strict=True))
    for instruction in made:
        if isinstance(instruction.argval, types.CodeType):
            instruction.argval = replaced[id(instruction.argval)]
    doc = consts[:1]  # a function's first constant is its docstring
    return bytecode.assemble(made, code, co_consts=tuple(doc), co_names=())


def check_behaviour(bytecode: Any, path: Path, use: Any) -> None:
    """A module whose whole code was rebuilt does what it did."""
    source = path.read_text(encoding="utf8")
    results = []
    for code in (original := compile(source, str(path), "exec")), rebuilt(bytecode, original):
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        sys.modules["rebuilt_" + path.stem] = module
        module.__name__ = "rebuilt_" + path.stem
        exec(code, module.__dict__)
        results.append(use(module))
    assert results[0] == results[1], f"{path.stem} behaves differently when rebuilt"


def use_textwrap(module: Any) -> object:
    return module.wrap("the quick brown fox jumps over the lazy dog " * 5, 30), module.dedent("  a\n    b\n  c")


def use_heapq(module: Any) -> object:
    return list(module.merge([1, 4, 9], [2, 3, 10])), module.nsmallest(3, [5, 1, 4, 2], key=lambda value: -value)


def use_difflib(module: Any) -> object:
    return list(module.unified_diff(["a", "b", "c", "d"], ["a", "c", "d", "e"])), module.get_close_matches(
        "appel", ["ape", "apple"]
    )


def use_argparse(module: Any) -> object:
    parser = module.ArgumentParser(prog="p", exit_on_error=False)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("names", nargs="*")
    with contextlib.suppress(Exception):
        parser.parse_args(["--count", "x"])
    return vars(parser.parse_args(["--count", "3", "a", "b"])), parser.format_help()


def use_contextlib(module: Any) -> object:
    @module.contextmanager
    def managed(log: list[str]) -> Iterator[int]:
        log.append("in")
        try:
            yield 1
        except ValueError as error:
            log.append(str(error))
        finally:
            log.append("out")

    log: list[str] = []
    with managed(log) as value, module.ExitStack() as stack:
        stack.callback(log.append, "callback")
        log.append(str(value))
        raise ValueError("seen")
    return log


def use_statistics(module: Any) -> object:
    return module.median([3, 1, 2]), module.stdev([1.5, 2.5, 4.0]), module.multimode("aabbc")


BEHAVIOURS = {
    "textwrap.py": use_textwrap,
    "heapq.py": use_heapq,
    "difflib.py": use_difflib,
    "argparse.py": use_argparse,
    "contextlib.py": use_contextlib,
    "statistics.py": use_statistics,
}


def main(folder: str) -> None:
    bytecode = load_package(folder)
    count = 0
    for path in library_files():
        for code in code_objects(compile(ast.parse(path.read_text(encoding="utf8")), str(path), "exec")):
            check_unchanged(bytecode, code)
            count += 1
    for name, use in BEHAVIOURS.items():
        check_behaviour(bytecode, Path(os.__file__).parent / name, use)
    print("ok", count)


if __name__ == "__main__":
    main(sys.argv[1])
