"""Functions that torch's C++ makes constants of sizes for, in programs whose sizes change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import ROUNDED, Counts, assert_same
from tests.scenarios import BACKENDS
from tests.varying_sizes import check_sizes

import stator

pytestmark = pytest.mark.fixed_sizes  # counts the versions of sizes that become symbols by changing


def rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 4, requires_grad=True), torch.randn(1, 4, requires_grad=True)


def products_of_all_pairs(x, y):
    return torch.kron(x, y), torch.kron(y[0], x), x[0].kron(x), torch.kron(x[:, 0], y[0, 1:])


def products_of_other_layouts(x, y):
    return torch.kron(x[:, None], y), torch.kron(y, x.t().contiguous())


def along_a_dimension(x, y):
    order = x.detach().argsort(0)
    return torch.take_along_dim(x, order, 0), x.take_along_dim(order, dim=-2), torch.take_along_dim(x, order)


def along_a_dimension_with_broadcasting(x, y):
    last, first = x.detach().argmax(1, keepdim=True), x.detach().argmin(0, keepdim=True)
    return torch.take_along_dim(x, last, 1), x.take_along_dim(first, 0), torch.take_along_dim(y, last, 1)


def selections(x, y):
    rows, mask = x * 1, x.detach() > 0
    first = torch.masked_select(rows, mask).sin().sum(), rows.masked_select(mask=mask[:, :1]).sum()
    return *first, (y * 2).masked_select(mask).sum(), torch.masked_select(rows[0, 0], mask).sum()


def blocks(x, y):
    return torch.block_diag(x, y, x[0], x[0, 0]), torch.block_diag(x.t(), x), torch.block_diag(x)


def filled_diagonals(x, y):
    square, wide = torch.zeros(x.shape[0], x.shape[0]), x * 1
    return square.fill_diagonal_(1) @ x, wide.fill_diagonal_(0.5), (x.t() * 2).fill_diagonal_(0.25)


def evenly_spaced(x, y):
    n = x.shape[0]
    from_zero = torch.linspace(0, 1, n)
    others = torch.linspace(3, -2.5, 2 * n + 1, dtype=torch.float64), torch.linspace(0, 50, n, dtype=torch.int64)
    between = torch.linspace(torch.tensor(0.5), torch.tensor(2.0), n)
    return x * from_zero[:, None], others, between, torch.logspace(-1, 1, n), torch.logspace(0, 3, n, 2.0)


def common_shapes(x, y):
    shape = torch.broadcast_shapes(x.shape, y.shape, (1,))
    wider = torch.broadcast_shapes((3, 1, 4), x.shape, x.size(1))
    return x.new_zeros(shape) + y, torch.ones(wider) * x, shape, wider, len(torch.broadcast_shapes(x.shape, 4))


def positions_of_pixels(x, y):
    n = x.shape[0]
    planar, spatial = x[:, :3].unsqueeze(1).repeat(1, 2, 1), x[:, None].repeat(1, 3, 1)
    image = F.affine_grid(planar.double(), [n, 1, n + 1, 4], align_corners=True)
    return image, F.affine_grid(planar, (n, 3, 2, n), False), F.affine_grid(spatial, [n, 1, 3, n, 2], False)


def gated_cell(x, y):
    state, weight = x[:, :2].tanh(), y.repeat(6, 1) * torch.arange(-3.0, 3.0)[:, None]
    torch_own = torch.gru_cell(x, state, weight, weight[:, :2])
    return torch_own, torch.gru_cell(x, state, weight, weight[:, :2], y[0, 0].repeat(6), y[0, 1].repeat(6))


def gated_memory(x, y):
    state, weight = (x[:, :2].tanh(), x[:, 2:] * 2), y.repeat(8, 1) * torch.arange(-3.0, 5.0)[:, None]
    state = torch.lstm_cell(x, state, weight, weight[:, :2])
    return torch.lstm_cell(x, state, weight, weight[:, :2], y[0, 0].repeat(8), y[0, 1].repeat(8))


def triangles(x, y):
    n = x.shape[0]
    first, second = torch.triu_indices(n, n, 1)
    below = torch.tril_indices(n, n + 1, dtype=torch.int32), torch.tril_indices(n, n, -2)
    return x[first] * x[second] + y, below, torch.triu_indices(n + 1, n)


def spectra(x, y):
    signal, window = x.repeat(1, 8).flatten(), torch.hann_window(12)
    framed = torch.stft(signal, 12, 5, window=window, return_complex=True)
    rows = x.t().repeat(1, 4)
    others = torch.stft(rows, 8, normalized=True, center=False, onesided=False, return_complex=True)
    shorter = torch.stft(rows, 8, 3, win_length=5, pad_mode="constant", return_complex=True)
    return framed, torch.view_as_real(others), shorter.abs().square() + y[0, 0]


def signals_of_spectra(x, y):
    signal, window = x.t().repeat(1, 8), torch.hann_window(12) + y[0, 0].abs()
    framed = torch.stft(signal, 12, 4, window=window, return_complex=True)
    whole = torch.istft(framed * 0.5, 12, 4, window=window, length=signal.shape[1])
    from_one = torch.istft(framed[0], 12, 4, win_length=12, normalized=True)
    return whole, from_one, framed.istft(12, 4, window=window[:10], win_length=10, center=True)


def running_products(x, y):
    some_zeros = x * (torch.arange(4) != torch.arange(x.shape[0])[:, None] % 6)
    return x.cumprod(0), some_zeros.cumprod(0), torch.cumprod(some_zeros * (x > 0), dim=-2), (x * y).cumprod(1).sin()


def frequencies(x, y):
    n = x.shape[0]
    return (
        torch.fft.fftfreq(n) * x[:, 0],
        torch.fft.rfftfreq(n + 1, 0.5),
        torch.fft.fftfreq(n, 2.0, dtype=torch.float64),
    )


def windows(x, y):
    n = x.shape[0]
    others = torch.hamming_window(n + 1, dtype=torch.float64), torch.blackman_window(n)
    triangles = torch.bartlett_window(n, dtype=torch.float64), torch.bartlett_window(n + 1, False)
    others = *others, *triangles, torch.kaiser_window(n), torch.kaiser_window(n + 2, False, dtype=torch.float64)
    return torch.hann_window(n) * x[:, 0], torch.hann_window(2 * n, periodic=False), *others, y * 2


def histograms(x, y):
    n, values = x.shape[0], x.detach()
    counted = torch.histc(values, n, -1, 1), values.histc(bins=n // 2 + 1, min=-2), torch.histc(values[:, 0], 3 * n)
    return *counted, x * counted[0].sum() + y


def variations(x, y):
    one, without = torch.cov(x[:, 0]), torch.cov(x, correction=0)
    return torch.cov(x), x.t().cov(), one, without, torch.corrcoef(x.t()), x[:, 1].corrcoef()


def tuples_of_elements(x, y):
    threes = torch.combinations(x[:, 1], 3)
    return torch.combinations(x[:, 0]), threes, torch.combinations(x[:, 2], 3, with_replacement=True)


def powers(x, y):
    row = x[:, 0].detach()
    return torch.vander(row) * y[0, 0], torch.vander(row, increasing=True), torch.vander(row, 3)


def slopes(x, y):
    return torch.gradient(x), torch.gradient(x * y, dim=0), torch.gradient(x, spacing=(2, 0.5), dim=(-1, 0))


PROGRAMS = [
    windows,
    histograms,
    variations,
    tuples_of_elements,
    powers,
    slopes,
    running_products,
    frequencies,
    gated_cell,
    gated_memory,
    triangles,
    products_of_all_pairs,
    products_of_other_layouts,
    along_a_dimension,
    along_a_dimension_with_broadcasting,
    selections,
    blocks,
    filled_diagonals,
    evenly_spaced,
    common_shapes,
]


@pytest.mark.each_pair
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_many_sizes_need_two_versions(program: Any, backend: str, dynamic: bool | None) -> None:
    check_sizes(program, rows, backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grids_of_positions_need_one_version(backend: str) -> None:
    check_sizes(positions_of_pixels, rows, backend=backend, dynamic=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_many_steps_as_an_int_says(backend: str) -> None:
    def program(x: torch.Tensor, steps: int) -> torch.Tensor:
        return torch.linspace(-1, 1, steps) * x

    check_sizes(program, lambda size: (torch.randn(1, requires_grad=True), size), backend=backend)


def padded_rows(x, y):
    pad = torch.nn.utils.rnn.pad_sequence
    left = pad([x, y, x[:3]], padding_value=-1.0, padding_side="left")
    return pad([x, y, x[2:]], batch_first=True), left, pad([x[:, 0], y[:, 1]])


def padded_to_multiples(x, y):
    n, m = x.shape[0], y.shape[0]
    return F.pad(x, (0, -n % 4, 0, -n % 8)), F.pad(y, (0, 0, -m % 3, 0), value=2.0)


@pytest.mark.parametrize("program", [spectra, signals_of_spectra])
def test_spectra_of_signals_of_any_length_need_one_version(program: Any) -> None:
    check_sizes(program, rows, dynamic=True)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", [padded_rows, padded_to_multiples])
def test_padding_does_not_rely_on_the_order_of_sizes(program: Any, backend: str) -> None:
    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 4, requires_grad=True), torch.randn(16 - size, 4, requires_grad=True)

    check_sizes(program, make, backend=backend, dynamic=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_means_of_channels_last_images_ask_for_no_sizes(backend: str) -> None:
    """Nor is one image, or an image that is one patch, a version of its own."""

    def program(x, weight):
        last = F.conv2d(x, weight, stride=4).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        pooled = F.adaptive_avg_pool2d(last, 1)
        return pooled.flatten(1), pooled.relu(), F.adaptive_avg_pool2d(x * 2, (1, 1))

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(size, 3, 3 + size, 2 + 2 * size, requires_grad=True)
        return images, torch.randn(5, 3, 4, 4, requires_grad=True)

    check_sizes(program, make, backend=backend, sizes=(5, 7, 1, 3))


@pytest.mark.parametrize("backend", BACKENDS)
def test_means_of_rows_and_norms_of_groups_need_no_version_for_one(backend: str) -> None:
    def program(x, weight):
        last = F.linear(x, weight)
        normed = F.group_norm(last.transpose(1, 2), 2)
        return F.adaptive_avg_pool1d(last.transpose(1, 2), 1).flatten(1), normed, F.adaptive_avg_pool1d(normed * 2, [1])

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 2 * size - 1, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)

    check_sizes(program, make, backend=backend, sizes=(5, 7, 1, 3), tolerance=ROUNDED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_convolutions_of_half_of_the_channels_of_a_sound_need_no_version_for_one(backend: str) -> None:
    def program(x, weight):
        first, second = x.chunk(2, 1)
        return F.conv1d(first, weight) + second, F.conv1d(first.transpose(1, 2)[:, 1:3], weight[:, :2])

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 8, size + 4, requires_grad=True), torch.randn(4, 4, 1, requires_grad=True)

    check_sizes(program, make, backend=backend, sizes=(5, 7, 1, 3), tolerance=ROUNDED)


def test_a_group_of_one_element_raises_as_in_eager() -> None:
    compiled = stator.compile(lambda x: F.group_norm(x, 4), backend="aot_eager")
    for size in (5, 7):
        compiled(torch.randn(size, 4, size))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        compiled(torch.randn(1, 4, 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_of_images_as_channels_of_one_image_have_one_layout(backend: str) -> None:
    def program(x, y):
        masks = torch.ones(x.shape[0], 6, 4)
        return F.interpolate(masks[None].float(), size=(3, 2)).to(torch.bool)[0].cumsum(1, dtype=torch.float32) * x

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, 3, 2), torch.ones(1)

    check_sizes(program, make, backend=backend, sizes=(2, 3, 1, 4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dim", [2, 3])
def test_attention_under_one_row_or_column_of_a_mask_needs_no_version_for_one(backend: str, dim: int) -> None:
    """With one query, too, for many queries in the first call."""

    def program(x, lengths):
        heads = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
        mask = (torch.arange(x.shape[1]) < lengths[:, None])[:, None].unsqueeze(dim)
        mask = torch.where(mask, 0.0, 0.5)  # no row without a key
        return F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).transpose(1, 2).flatten(2)

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows, length = size, (size * 3) % 7 or 1
        return torch.randn(rows, length, 8, requires_grad=True), torch.randint(1, length + 1, (rows,))

    check_sizes(program, make, backend=backend, sizes=(2, 4, 5, 1, 7, 3))


MATRICES = {
    "a mask for each head": lambda n: (torch.randn(2, 4, n, 8, requires_grad=True), torch.randn(4, n, n)),
    "one row of a mask for each head": lambda n: (torch.randn(2, 4, n, 8, requires_grad=True), torch.randn(4, 1, n)),
    "a learned mask": lambda n: (torch.randn(2, 4, n, 8), torch.randn(n, n, requires_grad=True)),
    "no heads": lambda n: (torch.randn(2, n, 8, requires_grad=True), torch.randn(n, n)),
    "no heads, a mask for each batch": lambda n: (torch.randn(2, n, 8, requires_grad=True), torch.randn(2, n, n)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_attention_that_multiplies_matrices_needs_no_version_for_one(name: str) -> None:
    program = lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask)  # noqa: E731
    check_sizes(program, MATRICES[name], sizes=(5, 7, 1, 9))


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_pointwise_convolutions_do_not_rely_on_eager_s_backend(threads: int) -> None:
    """Eager chooses it by the number of images and their size; the gradients lie in memory in one way."""
    usual = torch.get_num_threads()

    def make(size: int) -> tuple[torch.Tensor, ...]:
        images = torch.randn(size, 3, 9, 9 * size, requires_grad=True)
        return images, *(torch.randn(shape, requires_grad=True) for shape in ((4, 3, 1, 1), (4, 1, 1, 1), (1, 4, 3, 3)))

    def program(x, pointwise, by_channels, to_one):
        x = F.conv2d(x, pointwise)
        return F.conv2d(x, by_channels, groups=4), F.conv2d(x, to_one)

    torch.set_num_threads(threads)
    try:
        check_sizes(program, make, sizes=(2, 5, 1, 20))
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_rows_padded_to_whole_blocks_need_one_version_for_one_block_and_for_more(backend: str) -> None:
    def program(x, y):
        padding = (8 - x.shape[1] % 8) % 8
        x, y = (F.pad(one, (0, 0, 0, 0, 0, padding)) for one in (x, y))
        x, y = (one.reshape(one.shape[0], -1, 8, one.shape[2], one.shape[3]) for one in (x, y))
        return torch.einsum("bclhn,bcshn->bclsh", x, y)

    def make(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(3, size, 2, 3, requires_grad=True), torch.randn(3, size, 2, 3, requires_grad=True)

    check_sizes(program, make, backend=backend, sizes=(5, 7, 3, 21, 9, 8, 6))


def test_windows_that_leave_gaps_raise_in_inverse_transforms() -> None:
    def program(spectrum: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
        return torch.istft(spectrum, 8, 4, window=window)

    compiled = stator.compile(program, backend="aot_eager", fullgraph=True)
    spectrum = torch.randn(5, 6, dtype=torch.complex64)
    assert_same(compiled(spectrum, torch.ones(8)), program(spectrum, torch.ones(8)), ROUNDED)
    with pytest.raises(RuntimeError, match="window overlap add min: 1"):
        compiled(spectrum, torch.zeros(8))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: torch.stft(x.t(), 12, return_complex=True),
        lambda x, y: torch.stft(x.t(), 4, 0, return_complex=True),
        lambda x, y: torch.istft(x.t().to(torch.complex64), 8),
        lambda x, y: torch.nn.utils.rnn.pad_sequence([x, y[:, :2]]),
        lambda x, y: torch.take_along_dim(x, y.long(), 2),
        lambda x, y: torch.take_along_dim(x, y, 0),
        lambda x, y: torch.take_along_dim(x, y[0].long(), 0),
        lambda x, y: torch.broadcast_shapes(x.shape, (x.shape[0] + 1, 4)),
        lambda x, y: torch.masked_select(x, x),
        lambda x, y: x.masked_select(torch.ones(3, 4, dtype=torch.bool)),
        lambda x, y: torch.block_diag(x[None]),
        lambda x, y: torch.kron(x.t(), y),
        lambda x, y: torch.cov(x[None]),
        lambda x, y: torch.vander(x),
        lambda x, y: torch.combinations(x),
        lambda x, y: torch.gradient(x[:1]),
        lambda x, y: torch.gru_cell(x, x[:, :2], x[:, :3], x[:, :2]),
        lambda x, y: torch.lstm_cell(x, (x[:, :2], x[:, :2]), x[:, :3], x[:, :2]),
        lambda x, y: torch.lstm_cell(x, (x[:, :2], x[:2, :2]), y.repeat(8, 1), y.repeat(8, 1)[:, :2]),
    ],
)
def test_what_torch_refuses_is_refused(program: Any) -> None:
    assert error_of(stator.compile(program, backend="eager", dynamic=True)) == error_of(program)


def error_of(function: Any) -> str:
    with pytest.raises((RuntimeError, IndexError)) as caught:
        function(*[one.detach() for one in rows(5)])
    return str(caught.value).splitlines()[0]


MASKS: dict[str, Callable[[int], torch.Tensor]] = {
    "keys": lambda length: torch.randn(1, 1, 1, length),
    "keys of each batch": lambda length: torch.randn(2, 1, 1, length) > -1,
    "keys of each head": lambda length: torch.randn(2, 3, 1, length),
    "keys alone": lambda length: torch.randn(1, length),
    "queries": lambda length: torch.randn(1, 1, length, 1),
    "both": lambda length: torch.randn(2, 1, length, length),
}


@pytest.mark.parametrize("name", MASKS)
def test_attention_under_masks_that_broadcast_has_eager_s_layout(name: str) -> None:
    program = lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask)  # noqa: E731
    compiled, counts = stator.compile(program, dynamic=True, backend="aot_eager"), Counts()
    for length in (7, 9, 16):
        given = [torch.randn(2, length, 3, 8).transpose(1, 2) for _ in range(3)]
        mask = MASKS[name](length)
        found, expected = compiled(*given, mask), program(*given, mask)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    assert (counts.compilations, counts.breaks) == (1, 0)


@pytest.mark.parametrize("scale", [None, 0.2])
@pytest.mark.parametrize("masked", ["added", "hidden", "causal", "not at all"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_attention_that_multiplies_matrices_serves_all_sizes(scale: float | None, masked: str, share: float) -> None:
    causal = masked == "causal"

    def program(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, mask, share, causal, scale=scale)

    compiled, counts = stator.compile(program, dynamic=True, backend="aot_eager"), Counts()
    for batch, length in ((2, 7), (3, 9), (5, 16)):
        given = [torch.randn(batch, length, 3, 8).transpose(1, 2).requires_grad_() for _ in range(3)]
        mask = torch.randn(batch, 3, length, length)
        mask = {"added": mask.requires_grad_(), "hidden": mask > -1}.get(masked)
        found, expected = compiled(*given, mask), program(*given, mask)
        assert found.stride() == expected.stride()
        if not share:
            torch.testing.assert_close(found, expected)
            leaves = [*given, *([mask] if masked == "added" else [])]
            ours, theirs = (torch.autograd.grad(one.sin().sum(), leaves) for one in (found, expected))
            torch.testing.assert_close(ours, theirs)
    assert (counts.compilations, counts.breaks) == (1, 0)


def cropped(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A signal, and another one that is as long, or longer."""
    return torch.randn(2, 3, size, requires_grad=True), torch.randn(2, 3, size + max(size % 4 - 1, 0))


def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = torch.zeros_like(y)
    made[..., : x.shape[2]] = x * 2
    made[..., -x.shape[2] :] += 1
    made[..., :5] -= 3
    return made


CROPS = {
    "sum": lambda x, y: y[..., : x.shape[2]] + x,
    "of the end": lambda x, y: y[..., -x.shape[2] :] * x,
    "one operand": lambda x, y: y[..., : x.shape[2]].tanh(),
    "copy": lambda x, y: y[..., : x.shape[2]].clone(),
    "broadcast": lambda x, y: y[..., : x.shape[2]][:, None] * x[:, :, None],
    "written to": written,
    "of rows": lambda x, y: y.transpose(1, 2)[:, : x.shape[2]] - x.transpose(1, 2),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CROPS)
def test_a_crop_that_may_be_the_whole_is_compiled_for_both(name: str, backend: str) -> None:
    check_sizes(CROPS[name], cropped, backend=backend, sizes=(4, 6, 5, 9, 1, 7))
