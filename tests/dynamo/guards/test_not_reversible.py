"""Classes that say by `__reversed__ = None` that they cannot be walked backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

import stator


class Empty(Mapping[str, int]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(())


class Numbers(list[int]):
    __reversed__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("container", [Empty(), Numbers([1, 2])], ids=["mapping", "list"])
def test_reversed_raises_as_in_eager(container: object) -> None:
    def caught(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        y = x + 1
        try:
            reversed(container)  # type: ignore[call-overload]
        except TypeError as error:
            return y * 2, str(error)
        return y, "reversed"

    x = torch.randn(3, generator=torch.Generator().manual_seed(1))
    expected, message = caught(x)
    found, told = stator.compile(caught, backend="eager")(x)
    assert told == message
    assert torch.equal(found, expected)
