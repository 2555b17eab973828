"""Runs in a process of its own, in Triton's interpreter: ends of language models whose logits and gradients lie in rows
with gaps, compared with eager. Prints failures, then "done"."""

from __future__ import annotations

import interpreter  # noqa: F401 - before anything loads Triton
import torch
from tests.inductor.lower.language_head import Head

import stator
from stator.inductor.lower import aligned_rows

TOLERANCE = 2e-2  # of the norm; results are rounded to bfloat16


def step(call: torch.nn.Module, model: Head, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(model.training)
    with torch.set_grad_enabled(model.training):
        results = call(x)
    results = list(results) if isinstance(results, tuple) else [results]
    if model.training:
        model.zero_grad()
        results[0].backward()
        results += [x.grad, *[parameter.grad for parameter in model.parameters()]]
    return [result.detach() for result in results]


def main() -> None:
    aligned_rows.DEVICES = ("cpu",)
    aligned_rows._RATES = {step: rate / 1e7 for step, rate in aligned_rows._RATES.items()}
    for words in (91, 5003):
        for training, bias, gives_logits in ((False, True, True), (True, False, False), (True, True, True)):
            torch.manual_seed(0)
            model = Head(words, bias=bias, gives_logits=gives_logits).bfloat16().train(training)
            x = torch.randn(2, 5, 32).bfloat16()
            expected, found = step(model, model, x), step(stator.compile(model), model, x)
            for at, (one, other) in enumerate(zip(found, expected, strict=True)):
                error = float((one.double() - other.double()).norm() / other.double().norm())
                if not error < TOLERANCE or one.stride() != other.stride():
                    print(f"FAILED {words} {training} {bias} {gives_logits}: result {at}, {error}, {one.stride()}")
    print("done")


if __name__ == "__main__":
    main()
