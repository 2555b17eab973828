"""Why families run slower than 0.97 of eager's speed, as far as it is known: by suite and family."""

from __future__ import annotations

CAUSES: dict[str, dict[str, str]] = {
    "wide": {
        "wasserstein_gan": (
            "four runs on another machine gave 0.99 to 1.05: convolutions of images of 8 to 32 rows, which both give "
            "to oneDNN, take over three quarters of the step; loops save 0.3 ms, and six calls of compiled steps, one "
            "of them differentiated twice, cost a little more than that"
        ),
    },
    "transformers": {
        "switch_transformers": (
            "the sizes of experts' inputs and the experts themselves change from step to step, and the number of an "
            "expert is formatted into a name, which ends a graph for each: after 60 steps it is 0.79, for forty "
            "compiled steps of little data and of sizes that depend on data, which are not left to eager because "
            "other calls may bring more"
        ),
    },
    "timm": {},
}
