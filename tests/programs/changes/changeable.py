"""Classes that the programs here change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def changeable() -> tuple[type, Callable[..., type]]:
    """A class, and a maker of classes below it, or below others, with these attributes."""

    class C0:
        v = 2

        def f(self, x):
            return x * 2

        @property
        def p(self):
            return 2

        @staticmethod
        def s(x):
            return x * 2

        @classmethod
        def c(cls, x):
            return x * cls.v

    def fresh(base: type = C0, **attributes: Any) -> type:
        return type("Fresh", (base,), attributes)

    return C0, fresh
