"""Names of the variables of a printed host program. Knows no program."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

# Words of the printed text that cannot name a buffer's variable
_RESERVED = frozenset(
    (
        *("rt", "torch", "device", "inf", "nan", "complex", "Block", "idle", "check_size", "conform", "KERNELS"),
        *(
            "bind",
            "call",
            "arena",
            "token",
            "block",
            "pool",
            "unchecked",
            "repaired",
            "inputs",
            "at",
            *("floor", "ceil", "trunc", "min", "max", "float", "bool"),
            *keyword.kwlist,
        ),
    )
)


@dataclass(slots=True)
class Names:
    """taken: names in use. numbers: the next number of each numbered name."""

    taken: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)

    def new(self, name: str, numbered: bool = False) -> str:
        """A name that is not in use, made of any text: the text itself, or with a number behind it."""
        text = re.sub(r"\W", "_", name, flags=re.ASCII)
        if text in _RESERVED:
            text += "_"
        if not text.isidentifier():
            text = "_" + text
        if not numbered and text not in self.taken:
            self.taken.add(text)
            return text
        number = self.numbers.get(text, 0)
        while f"{text}_{number}" in self.taken:
            number += 1
        self.numbers[text] = number + 1
        self.taken.add(f"{text}_{number}")
        return f"{text}_{number}"
