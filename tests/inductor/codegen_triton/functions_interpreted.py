"""Runs in a process of its own, in Triton's interpreter: functions that generated kernels compute by helpers of ours,
in units of the last place of the exact result. Prints failures, then "done"."""

from __future__ import annotations

import math

import interpreter  # before anything loads Triton
import numpy as np
import torch

import stator

MOST = 4.0  # the interpreter rounds products in front of additions; on a GPU it is 2


FUNCTIONS = {"erf": (torch.erf, math.erf), "tanh": (torch.tanh, math.tanh)}


def check(name: str, x: torch.Tensor) -> None:
    function, reference = FUNCTIONS[name]
    exact = np.array([reference(value) for value in x.tolist()])
    found = stator.compile(lambda x: function(x))(x).numpy()
    distance = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))
    if not np.nanmax(distance) <= MOST or not np.isnan(found[-1]) or np.isnan(found[:-1]).any():
        print(f"FAILED {name}: {np.nanmax(distance)} units in the last place at {x[int(np.nanargmax(distance))]}")
    if not (np.signbit(found) == np.signbit(x.numpy()))[:-1].all():
        print(f"FAILED {name}: signs")


def main() -> None:
    near = torch.linspace(-6, 6, 200001)
    far = torch.logspace(-30, 38, 2001)
    x = torch.cat([near, far, -far, torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])])
    for name in FUNCTIONS:
        check(name, x)
    if not interpreter.launches:
        print("FAILED: no kernel ran")
    print("done")


if __name__ == "__main__":
    main()
