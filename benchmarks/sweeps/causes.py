"""Why families run slower than 0.97 of eager's speed, as far as it is known: by suite and family."""

from __future__ import annotations

CAUSES: dict[str, dict[str, str]] = {
    "wide": {},
    "transformers": {
        "audioflamingo3_encoder": (
            "0.77 to 0.90 in three runs: the model skips a mask that hides nothing, except if is_compiling() is true; "
            "with its mask of 1500 x 1500 the library's attention takes 1.5 times as long"
        ),
        "switch_transformers": (
            "the sizes of experts' inputs and the experts themselves change from step to step, and the number of an "
            "expert is formatted into a name: these are the first steps, most of them compilations; in steps 30 "
            "to 90 the speed is 0.96 to 0.97, for many small compiled parts"
        ),
    },
    "timm": {},
}
