"""Seeds and states of torch's random number generators: the graph ends where the program reads or sets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stator.dynamo.interpreter.calling import calls
from stator.dynamo.values.base import Value, unsupported
from stator.dynamo.values.objects import c_methods

if TYPE_CHECKING:
    from stator.dynamo.values.base import CaptureContext


@calls(torch.Generator, torch.random.manual_seed, torch.random.get_rng_state, torch.random.set_rng_state)
def _generator_state(context: CaptureContext, *args: Value, **kwargs: Value) -> Value:
    raise unsupported("call-builtin", "a random number generator of torch that is made, read or set")


for _name in ("get_state", "initial_seed", "manual_seed", "seed", "set_state"):
    c_methods.register(getattr(torch.Generator, _name))(_generator_state)
