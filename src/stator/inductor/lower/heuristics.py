"""When lowering stores an intermediate result instead of recomputing it in every consumer. All thresholds live here.

Storing is cheaper than it looks: the scheduler fuses the store's loops with its consumers where it may, and drops the
memory when nobody else reads it. Recomputing costs time in every consumer, and makes each one's body larger.
"""

from __future__ import annotations

# A closure that combines more buffers than this in one body runs out of address registers and prefetch streams.
MAX_READS = 8

# Longer bodies cost compile time when they are inlined into several consumers, and spill registers.
MAX_OPERATIONS = 48

# Below these, a value that is used several times is recomputed: it is one load and a few instructions.
REUSED_MAX_READS = 1
REUSED_MAX_OPERATIONS = 3

# Reductions of at most this many elements go over their data twice (it stays in the first-level cache, and two plain
# loops vectorise better than Welford's dependent updates); longer ones once.
TWO_PASS_MAX_ELEMENTS = 8192

# Where a channel's elements lie next to each other in runs of this length or more, per-channel arithmetic (a root and a
# division) inside the loops is cheaper than loops of its own.
MIN_CHANNEL_RUN = 16

# Pooling windows up to this many elements are unrolled into one expression; adaptive ones beyond it call the library.
MAX_UNROLLED_WINDOW = 32

# Sums that one pass over the data keeps in vector registers, beside what it loads.
MAX_ACCUMULATORS = 16

# Depthwise kernels of up to this many taps are not worth bringing images into another format for.
SMALL_DEPTHWISE = 9

# Convolutions that cut patches of this many positions are faster as products; of fewer, their gradients alone are.
LARGE_PATCH = 16

# The convolution library reorders weights on every call. For channels-last data that costs about as much per weight
# as eight elements of data save (measured on AVX-512; 1x1 kernels need no reordering).
DATA_ELEMENTS_PER_WEIGHT = 8


# Rows that are added to a table of so many times their elements are stored before: filling the table takes longer than
# that, and what the rows are computed from need not be kept meanwhile.
LARGE_TABLE = 4


# Kernels of groups of up to so many channels take 0.3 to 1.0 of the time on channels-last data, and so do their
# gradients (measured on AVX-512, 4 to 16 channels, batches of 1 to 8). On the smallest images they themselves take 1.1
# of it, but the one-tap kernels around them, which are products then, take half as long.
NARROW_GROUP = 16


def convolution_prefers_channels_last(
    groups: int, group_channels: int, pointwise: bool, weights: int, data: int
) -> bool | None:
    """Should a convolution see NHWC data? None: it does not care, let it have what its neighbours have.

    Depthwise kernels run twice as fast on NHWC, and those of narrow groups are faster. Dense ones with more than one
    tap prefer NCHW when they have many weights for little data (`data`: elements read and written).
    """
    if groups > 1 and group_channels <= NARROW_GROUP:
        return True
    if pointwise or weights * DATA_ELEMENTS_PER_WEIGHT <= data:
        return None
    return False


def store_before_reuse(reads: int, operations: int, heavy: bool) -> bool:
    """Should a value with several consumers be stored? `heavy`: it contains an exponential, an indirect load, ..."""
    return heavy or reads > REUSED_MAX_READS or operations > REUSED_MAX_OPERATIONS


def too_large(reads: int, operations: int) -> bool:
    """Should a value be stored even though it has a single consumer?"""
    return reads > MAX_READS or operations > MAX_OPERATIONS
