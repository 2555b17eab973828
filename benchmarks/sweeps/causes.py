"""Why families run slower than 0.97 of eager's speed, as far as it is known: by suite and family."""

from __future__ import annotations

CAUSES: dict[str, dict[str, str]] = {
    "wide": {
        "wasserstein_gan": (
            "0.957 and 0.958 in two runs, 0.99 to 1.05 in four on another machine: oneDNN's convolutions of images of "
            "8 to 32 rows take 12 of 15 ms in both; a gradient with create_graph costs 0.45 ms more than eager's, for "
            "the code around the compiled graphs, and two other backward calls 0.2 and 0.4 ms; loops save 0.4 ms"
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
