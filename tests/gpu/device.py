"""The device of the tests in this folder, and whether it is there. Imports nothing heavy before it is asked for.

STATOR_TEST_DEVICE=cpu runs the tests without a GPU: it checks the tests themselves. Tests of what only CUDA has are
left out then.
"""

from __future__ import annotations

import functools
import os

import pytest

DEVICE = os.environ.get("STATOR_TEST_DEVICE", "cuda")
only_cuda = pytest.mark.skipif(DEVICE != "cuda", reason="of CUDA alone")


@functools.cache
def missing() -> str | None:
    """Why the tests cannot run here."""
    import torch

    return "needs a CUDA GPU" if DEVICE == "cuda" and not torch.cuda.is_available() else None
