"""Why families of the wide suite run slower than 0.97 of eager's speed, as far as it is known."""

from __future__ import annotations

CAUSES: dict[str, str] = {
    "equation_adjoint": "the solver branches on times, which are tensors: a graph break at each branch",
    "equation_dopri5": "the solver branches on the error of each step, which is a tensor: a graph break at each branch",
    "mixture_of_experts": (
        "indices that depend on data divide the graph: operators between run in ATen, and every small compiled part "
        "costs calls, layout checks and, in training, an autograd node"
    ),
    "wasserstein_gan": "the gradient of the critic is differentiated again, in four graphs; not profiled yet",
}
