"""Why families run slower than 0.97 of eager's speed, as far as it is known: by suite and family."""

from __future__ import annotations

CAUSES: dict[str, dict[str, str]] = {
    "wide": {
        "equation_adjoint": "the solver branches on times, which are tensors: a graph break at each branch",
        "equation_dopri5": (
            "the solver branches on the error of each step, and on a number of its table in each of six turns, which "
            "are tensors: a graph break at each branch"
        ),
        "mixture_of_experts": (
            "indices that depend on data divide the graph: operators between run in ATen, and every small compiled "
            "part costs calls, layout checks and, in training, an autograd node"
        ),
        "wasserstein_gan": (
            "the critic is a few convolutions, which the library computes for both; the compiled gradient of the "
            "gradient computes the critic's convolutions again, which eager had saved"
        ),
    },
    "transformers": {
        "audioflamingo3_encoder": "measured once, on a busy machine; not confirmed and not profiled yet",
        "gpt_oss": "measured once, on a busy machine; not confirmed and not profiled yet",
        "ibert": (
            "each quantised activation branches on its range, which training moves: a graph break at each branch"
        ),
        "switch_transformers": (
            "the sizes of experts' inputs and the experts themselves change from step to step, and the number of an "
            "expert is formatted into a name: these are the first steps, most of them compilations; after 60 steps the "
            "speed is 0.84, for many small compiled parts"
        ),
    },
    "timm": {},
}
