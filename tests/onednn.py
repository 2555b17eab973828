"""What oneDNN offers on this processor."""

from __future__ import annotations

import functools

import pytest
import torch


@functools.cache
def _runs_lstm_in_bfloat16() -> bool:
    layers = torch.nn.LSTM(4, 5)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            layers(torch.ones(3, 2, 4))
    except RuntimeError as error:
        if "could not create a primitive descriptor" not in str(error):
            raise
        return False
    return True


def needs_lstm_in_bfloat16() -> None:
    """Skip the running test where eager cannot run an LSTM in bfloat16: oneDNN has none for processors with AVX2
    alone."""
    if not _runs_lstm_in_bfloat16():
        pytest.skip("eager has no LSTM in bfloat16 on this processor")
