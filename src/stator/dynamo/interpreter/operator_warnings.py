"""Warnings that operators give while the program catches warnings: what becomes of these is not followed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stator.dynamo.values.base import unsupported


@contextmanager
def none_given(blocks: Sequence[Any]) -> Iterator[None]:
    """Run an operator on tensors without data; raises Unsupported if it warns within `blocks` that catch warnings."""
    if not blocks:
        yield
        return
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    if given:
        raise unsupported("call-builtin", f"an operator's warning inside of catch_warnings: {given[0].message}")
