"""One description per CPython version: operand layout, calling convention, caches. Data only. Tables that the running
interpreter publishes (`opcode`) are read from it."""

from __future__ import annotations

import opcode
import sys
from dataclasses import dataclass, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Version:
    """The properties of a version that decoding, assembling and emitting depend on.

    flag_bits: for instructions whose operand is an index, the number of low bits that are flags.
    compare_shift: the number of bits below the operator in COMPARE_OP's operand.
    callee_first: a call's stack is callable, NULL, arguments (3.13); else NULL, callable, arguments.
    keywords: the way of keyword names: "KW_NAMES" before the call, or "CALL_KW" taking a tuple from the stack.
    precall: a PRECALL instruction precedes each CALL.
    closure_load: the instruction that pushes a cell itself. Decoded code uses LOAD_CLOSURE for the cell of a free
        variable, which may have the name of a local.
    jump_if_false: the opname of the forward jump.
    backward_twins: forward jump -> the backward instruction with that condition.
    borrowing: load that pushes a borrowed reference -> the load that owns it. A borrowing load is valid only where the
        compiler put it, so decoded code has the owning load.
    item_operator: the BINARY_OP that reads an item; None: BINARY_SUBSCR does.
    """

    number: tuple[int, int]
    flag_bits: MappingProxyType[str, int]
    compare_shift: int
    callee_first: bool
    keywords: str
    precall: bool
    closure_load: str
    jump_if_false: str
    backward_twins: MappingProxyType[str, str]
    pair_operands: frozenset[str]
    borrowing: MappingProxyType[str, str]
    item_operator: str | None


_PY311 = Version(
    number=(3, 11),
    flag_bits=MappingProxyType({"LOAD_GLOBAL": 1}),
    compare_shift=0,
    callee_first=False,
    keywords="KW_NAMES",
    precall=True,
    closure_load="LOAD_CLOSURE",
    jump_if_false="POP_JUMP_FORWARD_IF_FALSE",
    backward_twins=MappingProxyType(
        {
            "JUMP_FORWARD": "JUMP_BACKWARD",
            "POP_JUMP_FORWARD_IF_TRUE": "POP_JUMP_BACKWARD_IF_TRUE",
            "POP_JUMP_FORWARD_IF_FALSE": "POP_JUMP_BACKWARD_IF_FALSE",
            "POP_JUMP_FORWARD_IF_NONE": "POP_JUMP_BACKWARD_IF_NONE",
            "POP_JUMP_FORWARD_IF_NOT_NONE": "POP_JUMP_BACKWARD_IF_NOT_NONE",
        }
    ),
    pair_operands=frozenset(),
    borrowing=MappingProxyType({}),
    item_operator=None,
)

_PY312 = Version(
    number=(3, 12),
    flag_bits=MappingProxyType({"LOAD_GLOBAL": 1, "LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}),
    compare_shift=4,
    callee_first=False,
    keywords="KW_NAMES",
    precall=False,
    closure_load="LOAD_CLOSURE",
    jump_if_false="POP_JUMP_IF_FALSE",
    backward_twins=MappingProxyType({"JUMP_FORWARD": "JUMP_BACKWARD"}),
    pair_operands=frozenset(),
    borrowing=MappingProxyType({}),
    item_operator=None,
)

_PY313 = Version(
    number=(3, 13),
    flag_bits=_PY312.flag_bits,
    compare_shift=5,
    callee_first=True,
    keywords="CALL_KW",
    precall=False,
    closure_load="LOAD_FAST",
    jump_if_false="POP_JUMP_IF_FALSE",
    backward_twins=_PY312.backward_twins,
    pair_operands=frozenset({"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}),
    borrowing=MappingProxyType({}),
    item_operator=None,
)

_PY314 = replace(
    _PY313,
    number=(3, 14),
    borrowing=MappingProxyType(
        {"LOAD_FAST_BORROW": "LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST"}
    ),
    item_operator="[]",
)

_VERSIONS = {version.number: version for version in (_PY311, _PY312, _PY313, _PY314)}
VERSION: Version = _VERSIONS[sys.version_info[:2]]


def _cache_counts() -> list[int]:
    published = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(published, dict):
        return [published.get(name, 0) for name in opcode.opname]
    return list(published)


CACHES: list[int] = _cache_counts()  # code units of inline cache behind each opcode
BINARY_SYMBOLS: list[str] = [symbol for _, symbol in opcode._nb_ops]  # type: ignore[attr-defined]
COMPARE_SYMBOLS: tuple[str, ...] = tuple(opcode.cmp_op)


def _kinds() -> dict[str, str]:
    """Opname -> what its operand indexes: const, name, local, cell, pair, jump, binary or compare."""
    kinds: dict[str, str] = {}
    for kind, opcodes in (
        ("const", opcode.hasconst),
        ("name", opcode.hasname),
        ("local", opcode.haslocal),
        ("cell", opcode.hasfree),
        ("jump", opcode.hasjrel),
    ):
        kinds.update((opcode.opname[number], kind) for number in opcodes)
    kinds.update((name, "pair") for name in VERSION.pair_operands)
    kinds.update(BINARY_OP="binary", COMPARE_OP="compare")
    return kinds


OPERAND_KINDS: dict[str, str] = _kinds()
FORWARD_TWINS = {backward: forward for forward, backward in VERSION.backward_twins.items()}
