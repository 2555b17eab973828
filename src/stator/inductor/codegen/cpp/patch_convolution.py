"""Prints convolutions of 3 x 3 taps in patches of 2 x 2 results; vec_patches.h has the formula. Patches of the images
are changed for all channels, then each of their 16 elements is a product in tiles, then the products of a patch become
results, which the loops that follow read.
"""

from __future__ import annotations

from collections.abc import Iterator

from stator.inductor.convolutions import DirectConvolution

from .direct_convolution import DirectPrinter


class PatchPrinter(DirectPrinter):
    def __init__(self, convolution: DirectConvolution) -> None:
        super().__init__(convolution)
        self.leaves_registers = False  # products become results in memory

    def header(self) -> str:
        return '#include "vec_patches.h"\n'

    def tiles(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """Each thread has as many blocks of channels of some patches as the others, and changes the patches of each
        group that it meets."""
        rows = self.convolution.tile.rows
        yield from self.head()
        yield "const int64_t patches_down = (out_height + 1) / 2, patches_across = (out_across + 1) / 2;"
        yield "const int64_t all = rows / (out_height * out_across) * patches_down * patches_across;"
        yield "const int64_t parts = (all + chunk - 1) / chunk, even = (all + parts - 1) / parts;"
        yield f"const int64_t most = (even + {rows - 1}) / {rows} * {rows}, chunks = (all + most - 1) / most;"
        # a line more, since elements of a patch that are a multiple of 4 KB apart share a set of the cache
        yield "const int64_t elements_apart = most * channels + LANES, products_apart = most * width + LANES;"
        yield "const scratch<float> changed(PATCH * elements_apart), products(PATCH * products_apart);"
        yield "const scratch<float> lines(4 * most * width);"
        yield "int64_t known = -1;"
        yield "const int64_t last = chunks * items * (own + 1) / team;"
        yield "for (int64_t task = chunks * items * own / team; task < last; ++task) {"
        yield "    const int64_t item = task % items, group = item / blocks, block = item % blocks;"
        yield "    const int64_t begin = task / items * most, end = all - begin < most ? all : begin + most;"
        yield from (f"    {text}" for text in self.block())
        yield "    if (known != task / blocks) {"
        yield "        known = task / blocks;"
        yield from (f"        {text}" for text in self._runs(self._changes()))
        yield "    }"
        yield f"    const int64_t run = channels < {self.run} ? channels : {self.run};"
        yield f"    const int64_t share = width * 4 * run / ((end - begin + {rows - 1}) / {rows});"
        yield "    const char *ahead = (const char *)(weight + (item + 1) % items * depth * width);"
        yield "    for (int64_t element = 0; element < PATCH; ++element)"
        yield f"        for (int64_t patch = begin; patch < end; patch += {rows}) {{"
        yield from (f"            {text}" for text in self._element())
        yield "        }"
        yield from (f"    {text}" for text in self._runs(self._results(following)))
        yield "}"

    def _runs(self, body: Iterator[str]) -> Iterator[str]:
        """Patches side by side, from `patch` on."""
        yield "for (int64_t patch = begin, side; patch < end; patch += side) {"
        yield "    const int64_t x = 2 * (patch % patches_across), y = 2 * (patch / patches_across % patches_down);"
        yield "    const int64_t image = patch / (patches_across * patches_down);"
        yield "    side = patches_across - x / 2 < end - patch ? patches_across - x / 2 : end - patch;"
        yield "    const patches_of_image from = {"
        yield "        images + image * height * across * pixel + group * channels, height, across, pixel, channels,"
        yield "        y - padding_above, x - padding_before"
        yield "    };"
        yield from (f"    {text}" for text in body)
        yield "}"

    def _changes(self) -> Iterator[str]:
        yield "change_patches(from, side, changed.data + (patch - begin) * channels, elements_apart);"

    def _element(self) -> Iterator[str]:
        """The products of one element of a tile of patches."""
        yield "const int64_t count = end - patch;"
        yield "float *const tile = products.data + element * products_apart + (patch - begin) * width;"
        yield "const float *const p0 = changed.data + element * elements_apart + (patch - begin) * channels;"
        for p in self.positions[1:]:
            yield f"const float *const p{p} = p{p - 1} + ({p} < count ? channels : 0);"
        yield "for (int64_t at = 0; at < width; at += part) {"
        yield "    const float *w = block_weight + element * channels * width + at;"
        yield from (f"    {text}" for text in (*self.zeros(), *self.products(), *self.stores()))
        yield "}"

    def _results(self, following: list[str]) -> Iterator[str]:
        yield "const float *const sums = products.data + (patch - begin) * width;"
        yield "float *const above = lines.data, *const below = above + 2 * most * width;"
        yield "results_of_patches(from, block_weight, sums, products_apart, width, side, above, below);"
        yield "const int64_t count = 2 * side < out_across - x ? 2 * side : out_across - x;"
        yield "for (int64_t line = 0; line < 2 && y + line < out_height; ++line) {"
        yield "    const int64_t row = (image * out_height + y + line) * out_across + x;"
        yield "    const float *const tile = line ? below : above;"
        yield from (f"    {text}" for text in following)
        yield "}"
