"""The text of a random program while it is drawn: values with their shapes, sizes as expressions over a, b, c, n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
NAMES = ("a", "b", "c", "n")
# Two expressions are taken for equal if they agree here.
_PROBES = ((101, 211, 307, 23), (1009, 503, 61, 17), (96, 120, 360, 48))


class Size:
    """A size as the text of a Python expression over a, b, c and n."""

    def __init__(self, text: str | int) -> None:
        self.text = str(text)
        scope = {"min": min, "max": max}
        self.values = tuple(eval(self.text, scope, dict(zip(NAMES, probe, strict=True))) for probe in _PROBES)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)

    @property
    def is_one(self) -> bool:
        return self == ONE


ONE = Size(1)
Shape = tuple[Size, ...]


def product(sizes: Shape) -> Size:
    return Size(" * ".join(f"({size.text})" for size in sizes) or "1")


@dataclass(frozen=True)
class Value:
    name: str
    shape: Shape
    kind: str = "float"  # or "int", "bool"
    writable: bool = True


class Writer:
    """The text of a program while it is drawn, and the shapes of its values."""

    def __init__(self, draw: Draw, shape_of_z: tuple[str, ...], with_gradients: tuple[bool, bool, bool]) -> None:
        self.draw = draw
        shapes = {"x": ("a", "b"), "y": ("b", "c"), "z": shape_of_z}
        self.values = [
            Value(name, tuple(map(Size, shape)), writable=not needs)
            for (name, shape), needs in zip(shapes.items(), with_gradients, strict=True)
        ]
        self.values.append(Value("index", (Size("a"),), "int"))
        self.lines = ["a, b = x.shape", self.one_of("c = y.shape[1]", "c = y.size(-1)")]
        self.numbers: list[str] = ["n"]

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def value(self, kind: str = "float", dims: int = 0, where: Callable[[Value], bool] = lambda value: True) -> Value:
        """One of the values of a kind with at least so many dimensions; later ones are likelier. Skips if none fits."""
        fitting = [one for one in self.values if one.kind == kind and len(one.shape) >= dims and where(one)]
        if not fitting:
            raise Skip
        return self.one_of(*fitting, *fitting[-2:])

    def dim(self, value: Value, *, signed: bool = True) -> tuple[int, str]:
        """A dimension as an index, and as the program writes it."""
        if not value.shape:
            raise Skip
        at = self.draw(st.integers(0, len(value.shape) - 1))
        return at, str(at - len(value.shape) if signed and self.draw(st.booleans()) else at)

    def size(self, size: Size) -> str:
        """The text of a size, or a read of it from a value that has it."""
        reads = [
            f"{one.name}.shape[{at}]" for one in self.values for at, other in enumerate(one.shape) if other == size
        ]
        if size.text.isdigit() or not reads or self.draw(st.booleans()):
            return size.text if size.text.isalnum() else f"({size.text})"
        return self.one_of(*reads)

    def number(self) -> Size:
        """An expression that is a small number, not negative if sizes are not."""
        return Size(
            self.one_of(
                *("a", "b", "c", "n", "a // 2", "b // 2", "(a + 1) // 2", "c % 3", "a + b", "min(a, b)", "max(b, c)"),
                *("max(a - 1, 0)", "n // 2", "a * 2", "(a + b) // 3", "1", "2", "3", "a * b // 2", "b + 1"),
            )
        )

    def add(self, text: str, shape: Shape, kind: str = "float") -> None:
        name = f"v{sum(one.name.startswith('v') for one in self.values)}"
        self.lines.append(f"{name} = {text}")
        self.values.append(Value(name, shape, kind))


class Skip(Exception):
    """No value fits this kind of step."""


Step = Callable[[Writer], None]


class Steps(list[Step]):
    """A registry of steps; `weight` says how often a step is drawn beside others."""

    def __call__(self, weight: int = 1) -> Callable[[Step], Step]:
        def register(function: Step) -> Step:
            self.extend([function] * weight)
            return function

        return register


def broadcast(one: Shape, other: Shape) -> Shape | None:
    longest = max(len(one), len(other))
    padded = [(ONE,) * (longest - len(shape)) + shape for shape in (one, other)]
    if any(not (p == q or p.is_one or q.is_one) for p, q in zip(*padded, strict=True)):
        return None
    return tuple(q if p.is_one else p for p, q in zip(*padded, strict=True))


_SLICES = (
    ("1:", "max({s} - 1, 0)"),
    (":-1", "max({s} - 1, 0)"),
    ("::2", "({s} + 1) // 2"),
    (":{n}", "min({s}, {n})"),
    ("{n}:", "max({s} - ({n}), 0)"),
    ("-{n}:", "min({s}, {n}) if {n} else {s}"),
    (":{s} // 2", "({s}) // 2"),
    ("{s} // 2:", "({s}) - ({s}) // 2"),
    ("1:{n} + 1", "max(min({s}, {n} + 1) - 1, 0)"),
)


def sliced_part(w: Writer, v: Value) -> tuple[str, Shape]:
    at, _ = w.dim(v)
    text, size = w.one_of(*_SLICES)
    n = w.number().text
    written = text.format(s=w.size(v.shape[at]), n=f"({n})")
    shape = (*v.shape[:at], Size(size.format(s=f"({v.shape[at].text})", n=f"({n})")), *v.shape[at + 1 :])
    return ", ".join([":"] * at + [written]), shape
