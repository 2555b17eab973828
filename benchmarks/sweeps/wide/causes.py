"""Why families of the wide suite run slower than 0.97 of eager's speed, as far as it is known."""

from __future__ import annotations

_SPLIT = (
    "indices that depend on data divide the graph: the operators between run in ATen, and every small compiled part "
    "costs calls, layout checks and, in training, an autograd node"
)
_CONVOLUTIONS = (
    "no breaks; most of the time is in the library's convolutions and their gradients on both sides; the rest is not "
    "profiled yet"
)
_SMALL = (
    "no breaks; networks of three small layers on rows of 64 states: entering a compiled step and its autograd node "
    "probably costs about what fusion saves; not profiled yet"
)

CAUSES: dict[str, str] = {
    "a2c": _SMALL,
    "augmentation": (
        "the order of colour operations is drawn as a tensor and branched on, so each order is a version of its own, "
        "and a graph break at each branch"
    ),
    "autoencoder_kl": _CONVOLUTIONS,
    "dyn_unet": _CONVOLUTIONS,
    "equation_adjoint": "the solver branches on times, which are tensors: a graph break at each branch",
    "equation_dopri5": "the solver branches on the error of each step, which is a tensor: a graph break at each branch",
    "mixture_of_experts": _SPLIT,
    "monai_densenet": _CONVOLUTIONS,
    "packed_tagger": (
        "packed sequences run in ATen between compiled parts, and nearly all of the time is in the library's LSTM"
    ),
    "patch_descriptor": (
        "a convolution of one input channel returns another layout than was promised, so its result is copied in every "
        "call"
    ),
    "ppo": _SMALL,
    "relational_gcn": _SPLIT,
    "variational_process": "settings of gpytorch are written to classes, and generators end: graph breaks",
    "wasserstein_gan": "the gradient of the critic is differentiated again, in four graphs; not profiled yet",
}
