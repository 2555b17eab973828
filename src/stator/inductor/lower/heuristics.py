"""Decides when lowering stores an intermediate result instead of recomputing it in every consumer. Has all thresholds.

Storing is cheaper than it looks: the scheduler fuses the store's loops with its consumers where it may, and drops the
memory when nothing else reads it. Recomputing costs time in every consumer, and makes each consumer's body larger.
"""

from __future__ import annotations

# A closure that combines more buffers than this in one body runs out of address registers and prefetch streams.
MAX_READS = 8

# Longer bodies cost compile time when they are inlined into several consumers, and spill registers.
MAX_OPERATIONS = 48

# Below these limits a value with several uses is recomputed: recomputation is one load and a few instructions.
REUSED_MAX_READS = 1
REUSED_MAX_OPERATIONS = 3

# Normalisations of at least this many elements correct the mean by the mean of the deviations (T. Chan, G. Golub and
# R. LeVeque, 1983). Sums of fewer elements lose a bit or two, and another sum would take 10 to 30 % of the time.
MIN_CORRECTED_ELEMENTS = 512

# Where a channel's elements are contiguous in runs of this length or more, arithmetic per channel (a root and a
# division) inside the loops is cheaper than in loops of its own.
MIN_CHANNEL_RUN = 16

# Group norms of NHWC data add up channels first, unless groups have so many channels that they fill vectors. On a GPU
# they do so for images of at most so many positions.
WIDE_GROUP = 64
MOST_POSITIONS = 1024

# Pooling windows of up to this many elements are unrolled into one expression; larger adaptive ones call the library.
MAX_UNROLLED_WINDOW = 32

# The number of sums that one pass over the data keeps in vector registers beside its loads.
MAX_ACCUMULATORS = 16

# The gradient of a depthwise kernel of up to this many taps takes the library 0.6 to 1.0 of the time of loops, with the
# kernel in the format of the data (measured on AVX-512, two or eight images of 7 to 112 rows).
SMALL_DEPTHWISE = 9

# Convolutions that cut patches of this many positions are faster as products. With smaller patches only their gradients
# are.
LARGE_PATCH = 16

# A ratio of what is moved, on any processor. In NCHW the library moves each element of data between that format and its
# blocks. In NHWC a weight of several taps takes a pass more, whose lines lie apart (kernel_strides in convolution.py).
# An element of a weight then takes as long as two to three of data: 0.6 to 0.8 and 0.23 to 0.4 ns (12 convolutions, an
# EPYC, with the library's kernels for AVX-512 and for AVX2). Of all such convolutions of a graph together a little more
# has to be saved, and of one alone half of it goes where its neighbours have another format.
DATA_ELEMENTS_PER_WEIGHT = 8
DATA_ELEMENTS_PER_WEIGHT_TOGETHER = 4

# Rows are stored before they are added to a table with at least this many times their elements. Filling the table takes
# longer than storing the rows, and with the rows stored their operands can die before the table is filled.
LARGE_TABLE = 4


# Kernels of groups of up to this many channels, and their gradients, take 0.3 to 1.0 of the time on channels-last data
# (measured on AVX-512, 4 to 16 channels, batches of 1 to 8). On the smallest images the kernels themselves take 1.1 of
# the time, but the one-tap kernels around them, which are products then, take half as long.
NARROW_GROUP = 16


def convolution_prefers_channels_last(
    groups: int, group_channels: int, pointwise: bool, weights: int, data: int
) -> bool | None:
    """True if a convolution should get NHWC data; None if it has no preference and may follow its neighbours.

    Depthwise kernels run twice as fast on NHWC, and kernels of narrow groups are faster too. Dense kernels with more
    than one tap prefer NCHW when they have many weights for little data (`data`: elements read and written).
    """
    if groups > 1 and group_channels <= NARROW_GROUP:
        return True
    if pointwise or weights * DATA_ELEMENTS_PER_WEIGHT <= data:
        return None
    return False


# On an H100 in bfloat16, kernels of groups of 24 channels take 1.6 to 2.3 times as long on channels-last data, their
# gradients too; of 4 channels half as long, and of 8 without gradients.
NARROW_GPU_GROUP, NARROW_GPU_GROUP_OF_INFERENCE = 4, 8


def gpu_convolution_prefers_channels_last(
    groups: int, group_channels: int, tensor_cores: bool, trains: bool
) -> bool | None:
    """The same for cuDNN. For tensor cores, it converts data of another format around each convolution."""
    if groups == 1:
        return True if tensor_cores else None
    return group_channels <= (NARROW_GPU_GROUP if trains else NARROW_GPU_GROUP_OF_INFERENCE)


def store_before_reuse(reads: int, operations: int, heavy: bool) -> bool:
    """True if a value with several consumers should be stored. `heavy`: it has an exponential, an indirect load, ..."""
    return heavy or reads > REUSED_MAX_READS or operations > REUSED_MAX_OPERATIONS


def too_large_to_inline(reads: int, operations: int) -> bool:
    """True if a value should be stored even though it has a single consumer."""
    return reads > MAX_READS or operations > MAX_OPERATIONS
