"""Prints convolutions of 3 x 3 taps in patches of 2 x 2 results; vec_patches.h has the formula. Patches of the images
are changed for all channels, then each of their 16 elements is a product in tiles, then the products of a patch become
results, which the loops that follow read.
"""

from __future__ import annotations

from collections.abc import Iterator

from stator.inductor.convolutions import DirectConvolution

from .direct import DirectPrinter


class PatchPrinter(DirectPrinter):
    def __init__(self, convolution: DirectConvolution) -> None:
        super().__init__(convolution)
        self.leaves_registers = False  # products become results in memory

    def header(self) -> str:
        return '#include "vec_patches.h"\n'

    def tiles(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """Tiles of a chunk of patches and one block of channels, then of the next block, then of the next chunk. Each
        thread has as many tiles as the others, and changes the patches of each chunk and group that it meets."""
        rows = self.convolution.tile.rows
        yield from self.head()
        yield "const int64_t patches_down = (out_height + 1) / 2, patches_across = (out_across + 1) / 2;"
        yield "const int64_t all = rows / (out_height * out_across) * patches_down * patches_across;"
        yield f"const int64_t down_all = (all + {rows - 1}) / {rows}, most = (chunk + {rows - 1}) / {rows};"
        yield "const int64_t chunks = down_all > most ? (down_all + most - 1) / most : 1;"
        yield f"const int64_t down_chunk = (down_all + chunks - 1) / chunks, size = down_chunk * {rows};"
        # a line more, since elements of a patch that are a multiple of 4 KB apart share a set of the cache
        yield "const int64_t elements_apart = size * channels + LANES, products_apart = size * width + LANES;"
        yield "const scratch<float> changed(PATCH * elements_apart), products(PATCH * products_apart);"
        yield "const scratch<float> lines(4 * size * width);"
        yield "int64_t known = -1;"
        yield "const int64_t last = down_all * items * (own + 1) / team;"
        yield "for (int64_t at = down_all * items * own / team; at < last;) {"
        yield from (f"    {text}" for text in self.next_tiles())
        yield f"    const int64_t origin = above * {rows}, begin = origin + first * {rows};"
        yield f"    const int64_t below = begin + tiles * {rows}, end = below < all ? below : all;"
        yield "    const int64_t group = item / blocks, block = item % blocks;"
        yield from (f"    {text}" for text in self.block())
        yield "    if (known != above * groups + group) {"
        yield "        known = above * groups + group;"
        yield f"        const int64_t whole = origin + down * {rows};"
        yield "        const int64_t to = at == last ? end : whole < all ? whole : all;"
        yield from (f"        {text}" for text in self._runs("at == last ? begin : origin", "to", self._changes()))
        yield "    }"
        yield f"    const int64_t run = channels < {self.run} ? channels : {self.run};"
        yield "    const int64_t share = width * 4 * run / tiles;"
        yield "    const char *ahead = (const char *)(weight + (item + 1) % items * depth * width);"
        yield "    for (int64_t element = 0; element < PATCH; ++element)"
        yield f"        for (int64_t patch = begin; patch < end; patch += {rows}) {{"
        yield from (f"            {text}" for text in self._element())
        yield "        }"
        yield from (f"    {text}" for text in self._runs("begin", "end", self._results(following)))
        yield "}"

    def _runs(self, first: str, end: str, body: Iterator[str]) -> Iterator[str]:
        """Patches side by side, from `patch` on."""
        yield f"for (int64_t patch = {first}, side; patch < {end}; patch += side) {{"
        yield "    const int64_t x = 2 * (patch % patches_across), y = 2 * (patch / patches_across % patches_down);"
        yield "    const int64_t image = patch / (patches_across * patches_down), rest = patches_across - x / 2;"
        yield f"    side = rest < {end} - patch ? rest : {end} - patch;"
        yield "    const patches_of_image from = {"
        yield "        images + image * height * across * pixel + group * channels, height, across, pixel, channels,"
        yield "        y - padding_above, x - padding_before"
        yield "    };"
        yield from (f"    {text}" for text in body)
        yield "}"

    def _changes(self) -> Iterator[str]:
        yield "change_patches(from, side, changed.data + (patch - origin) * channels, elements_apart);"

    def _element(self) -> Iterator[str]:
        """The products of one element of a tile of patches."""
        yield "const int64_t count = end - patch;"
        yield "float *const tile = products.data + element * products_apart + (patch - origin) * width;"
        yield "const float *const p0 = changed.data + element * elements_apart + (patch - origin) * channels;"
        for p in self.positions[1:]:
            yield f"const float *const p{p} = p{p - 1} + ({p} < count ? channels : 0);"
        yield "for (int64_t at = 0; at < width; at += part) {"
        yield "    const float *w = block_weight + element * channels * width + at;"
        yield from (f"    {text}" for text in (*self.zeros(), *self.products(), *self.stores()))
        yield "}"

    def _results(self, following: list[str]) -> Iterator[str]:
        yield "const float *const sums = products.data + (patch - origin) * width;"
        yield "float *const upper = lines.data, *const lower = upper + 2 * size * width;"
        yield "results_of_patches(from, block_weight, sums, products_apart, width, side, upper, lower);"
        yield "const int64_t count = 2 * side < out_across - x ? 2 * side : out_across - x;"
        yield "for (int64_t line = 0; line < 2 && y + line < out_height; ++line) {"
        yield "    const int64_t row = (image * out_height + y + line) * out_across + x;"
        yield "    const float *const tile = line ? lower : upper;"
        yield from (f"    {text}" for text in following)
        yield "}"
