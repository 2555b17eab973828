"""Shape rules, one module per family of operators. Importing this package registers all of them."""

from . import (
    composites,
    creation,
    distances,
    elementwise,
    fft,
    foreach,
    indexing,
    like_arguments,
    linalg,
    matmul,
    reductions,
    shaping,
    sorting,
    views,
)
from .neural_networks import (
    attention,
    convolution,
    embeddings,
    gradients,
    losses,
    normalisation,
    pooling,
    quantization,
    upsampling,
)

from . import refused_dtypes as refused_dtypes  # isort: skip  # wraps the rules of the others
