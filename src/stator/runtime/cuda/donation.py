"""Saved values whose memory the recording of a backward takes: gradients come to lie where the backward has read.

A capture frees a tensor that it alone owns, and the allocator then gives this memory to later tensors of the capture.
So the recording of a forward hands the tensors of its saved values over to the capture of the backward, and keeps
tensors on that memory which do not own it. graphs.py decides when this may be done, and what may run afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch

from .graph_results import RecordedResults
from .result_memory import Donation, ResultStorage


class TakenValues(NamedTuple):
    """What a capture of a backward takes. pool: the number of the pool where it lies. owners: the tensors that own the
    memory, by the positions of arguments."""

    pool: int
    donation: Donation
    storages: Collection[ResultStorage]
    owners: dict[int, torch.Tensor]


def bytes_lent(results: RecordedResults, inputs: Iterable[Any]) -> int:
    """The bytes of the inputs that are saved values of a recording which own their memory."""
    lent = {id(tensor) for one in results.lent if not one.given_away for tensor in one.tensors}
    return sum(one.nbytes for one in inputs if id(one) in lent)


def take_values(results: RecordedResults, pool: int, inputs: list[Any], positions: Iterable[int]) -> TakenValues | None:
    """Take the saved values, in this pool, that only the inputs at these positions hold. The inputs become the tensors
    on their memory that the recording hands out from now on. None if there are no such values."""
    owned = [one for one in results.lent if not one.given_away]
    lent = {id(tensor): (one, at) for one in owned for at, tensor in enumerate(one.tensors)}
    places = {at: lent[id(inputs[at])] for at in positions if id(inputs[at]) in lent}
    for at in places:
        inputs[at] = None
    storages = list(dict.fromkeys(one for one, _ in places.values() if not one.is_used()))
    owners = {at: one.tensors[index] for at, (one, index) in places.items() if one in storages}
    donation = results.give_away(storages) if storages else None
    for at, (one, index) in places.items():
        inputs[at] = one.tensors[index]
    if donation is None:
        return None
    donation.note_call()
    return TakenValues(pool, donation, storages, owners)


__all__ = ["TakenValues", "bytes_lent", "take_values"]
