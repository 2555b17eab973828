"""Prints convolutions of images in NHWC. A tile of the result, some positions times some vectors of channels, stays in
registers while a kernel runs over all taps and channels of the images; the loops that follow read the tile.

A position outside of the image reads zeros, or is left out. Where positions end within a tile, it computes the last
one several times. The text depends on the tile, on whether channels or a line of the image end within it, and on
whether 4, 3 or 2 divides the channels of the images, not on the sizes; for a matrix as it lies in memory, also on
whether rows are few, many, or a symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from stator.inductor.convolutions import DirectConvolution
from stator.runtime.toolchain import float_lanes

from .following_loops import LINE

_REGISTERS = 16  # of AVX2
_ALL_REGISTERS = ", ".join(f'"xmm{at}"' for at in range(_REGISTERS))
_UNROLLED = (4, 3, 2, 1)  # channels between two comparisons of their number: the first that divides it
# Channels that a tile multiplies before it asks for its next part of far memory, where vectors have 8 lanes
_RUN = 32
# Rows up to which a matrix is multiplied as it lies in memory, which takes 0.3 to 0.95 of the time of packing it
_FEW_ROWS = 24
# The same for a matrix that lies by rows, and the sums that wait in the nearest cache meanwhile
_FEW_ROWS_BY_ROWS, _SUMS_AT_ONCE = 8, 4096
_FEW_REGISTERS = 3
_LINE_BYTES = 4 * LINE
_MORE_LINES = (1, 2, 3)  # of the next block, that a channel of few rows asks for
_MUCH = 1024  # results between two positions of which the first asks for the second: more fill the nearest cache
# Taps that multiply so many channels take less time than finding where they are
FEW_CHANNELS = 8


class DirectPrinter:
    def __init__(self, convolution: DirectConvolution) -> None:
        self.convolution = convolution
        tile = convolution.tile
        self.in_registers: list[str] = []  # text that reads the sums where they are, if any
        # where each position of the result reads one of the images, at the same place
        self.of_positions = (convolution.kernel, convolution.stride, convolution.padding) == ((1, 1), (1, 1), (0, 0))
        self.few_channels = convolution.in_channels <= FEW_CHANNELS and not self.of_positions
        known = isinstance(convolution.rows, int)
        few = _FEW_ROWS_BY_ROWS if convolution.by_rows else _FEW_ROWS
        self.few_rows = convolution.matrix is not None and (not known or convolution.rows <= few)
        self.many_rows = not (self.few_rows and known)
        self.positions, self.vectors = range(tile.rows), range(max(1, tile.columns // float_lanes()))
        needed = (tile.rows + 1) * len(self.vectors) + (0 if convolution.depthwise else 1)
        needed += (convolution.of_group - 1) * len(self.vectors)  # each channel of a group has weights
        self.run = _RUN if float_lanes() == 8 else 1  # with AVX-512, runs of 32 took 1.1 of ResNet-50's time on a Xeon
        # loops that follow need some: where they take those of sums, sums go through memory in each step
        self.leaves_registers = (
            float_lanes() == 16
            and len(self.vectors) > 1
            and not convolution.is_padded
            and not (convolution.depthwise and convolution.out_size[1] < tile.rows)  # sums behind the row's end
            and needed + _FEW_REGISTERS <= 2 * _REGISTERS
        )
        self.fills_registers = float_lanes() == 8 and needed <= _REGISTERS  # others have twice as many

    def header(self) -> str:
        """Text before the kernel."""
        in_groups = '#include "vec_groups.h"\n' if self.convolution.of_group > 1 else ""
        return '#include "vec_products.h"\n' if self.few_rows else in_groups

    def tiles(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """Each thread has as many tiles as the others."""
        yield from self.head()
        yield "const bool far_results = 4 * rows * groups * out_channels > far;"
        if self.convolution.matrix is not None:
            yield "alignas(64) float packed[panel * width];"
        if self.convolution.depthwise:
            yield from self._depthwise(prefetches, following)
        else:
            yield from self._dense(prefetches, following)

    def head(self) -> Iterator[str]:
        yield f"constexpr int64_t width = {self.convolution.tile.columns}, part = {len(self.vectors)} * LANES;"
        yield 'static_assert(width % part == 0, "a tile is whole vectors");'
        yield "const int64_t items = groups * blocks, team = omp_get_num_threads(), own = omp_get_thread_num();"

    def _depthwise(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """Tiles of all channels of some neighbours in a row of the image, then of the next ones. The last neighbours of
        a row begin within those before them."""
        rows = self.convolution.tile.rows
        yield f"const int64_t of_line = (out_across + {rows - 1}) / {rows}, all = rows / out_across * of_line * items;"
        yield f"const int64_t count = out_across < {rows} ? out_across : {rows}, last = all * (own + 1) / team;"
        yield f"const int64_t hop = stride_across * pixel, further = {rows};"
        yield f"const bool much = further * out_channels >= {_MUCH};"
        yield "for (int64_t at = all * own / team; at < last;) {"
        yield "    const int64_t place = at / items, line = place / of_line;"
        yield f"    const int64_t before = place % of_line * {rows}, beyond = out_across - count;"
        yield "    const int64_t x = before < beyond ? before : beyond, row = line * out_across + x;"
        yield "    const int64_t top = line % out_height * stride_down - padding_above;"
        yield "    const int64_t left = x * stride_across - padding_before;"
        yield "    const int64_t corner = ((line / out_height * height + top) * across + left) * pixel;"
        yield "    int64_t block = at % items;"
        yield "    const int64_t end = items - block < last - at ? items : block + last - at;"
        yield "    for (at += end - block; block < end; ++block) {"
        yield "        const int64_t most = out_channels - width, column = block * width < most ? block * width : most;"
        yield f"        alignas(64) float tile[{rows} * width];"
        yield "        if (far_images) {"
        yield f"            const float *ahead = images + corner + column + {rows} * hop;"
        yield "            ahead += (taps_down - 1) * dilation_down * across * pixel;"
        yield "            const int64_t lines = taps_down < stride_down ? taps_down : stride_down;"
        yield "            for (int64_t y = 0; y < lines; ++y, ahead -= across * pixel)"
        yield f"                for (int64_t x = 0; x < {rows} * stride_across; ++x)"
        yield f"                    for (int64_t at = 0; at < width; at += {LINE})"
        yield "                        if (far_images > 1) __builtin_prefetch(ahead + x * pixel + at, 0, 2);"
        yield "                        else __builtin_prefetch(ahead + x * pixel + at);"
        yield "        }"
        yield "        if (far_results) {"
        yield from ("            " + text for text in prefetches)
        yield "        }"
        yield "        for (int64_t at = 0; at < width; at += part) {"
        yield "            const float *w = weight + block * depth * width + at;"
        yield from ("            " + text for text in self.zeros())
        yield "            for (int64_t down = 0; down < taps_down; ++down) {"
        yield "                const int64_t dy = down * dilation_down;"
        yield "                if ((uint64_t)(top + dy) >= (uint64_t)height) {"
        of_group = self.convolution.of_group
        yield f"                    w += {of_group} * taps_across * width;"
        yield "                    continue;"
        yield "                }"
        yield "                const float *p0 = images + corner + column + dy * across * pixel + at;"
        yield "                for (int64_t along = 0; OFTEN(along < taps_across); ++along) {"
        yield from (f"                    {text}" for text in self._weights_of_tap())
        yield from (f"                    const float *const p{p} = p{p - 1} + hop;" for p in self.positions[1:])
        products = [" ".join(self._products_of_tap(p)) for p in self.positions]
        yield "                    const int64_t dx = left + along * dilation_across;"
        yield f"                    if (dx >= 0 && dx + {rows - 1} * stride_across < across) {{"
        yield from (f"                        {text}" for text in products)
        yield "                    } else {"
        for p, text in enumerate(products):
            yield f"                        if ((uint64_t)(dx + {p} * stride_across) < (uint64_t)across) {{ {text} }}"
        yield "                    }"
        yield "                    p0 += dilation_across * pixel;"
        yield f"                    w += {of_group} * width;"
        yield "                }"
        yield "            }"
        yield from ("            " + text for text in self.in_registers or self.stores())
        yield "        }"
        if not self.in_registers:
            yield from ("        " + text for text in following)
        yield "    }"
        yield "}"

    def _weights_of_tap(self) -> Iterator[str]:
        for c in range(self.convolution.of_group):
            yield from (f"const vf32 w{v}_{c} = load(w + {c} * width + {v} * LANES);" for v in self.vectors)

    def _products_of_tap(self, p: int) -> Iterator[str]:
        """The products of a position, by each channel of the groups that the lanes are of."""
        size = self.convolution.of_group
        for v in self.vectors:
            x = f"load(p{p} + {v} * LANES)"
            if size > 1:
                yield f"const vf32 x{p}_{v} = {x};"
            for c in range(size):
                of_group = f"spread<{size}, {c}>(x{p}_{v}, p{p} + {v} * LANES, at + {v} * LANES)"
                factor = x if size == 1 else of_group
                yield f"a{p}_{v} = op_fma({factor}, w{v}_{c}, a{p}_{v});"

    def _dense(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """Tiles of a chunk of positions and one block of channels, then of the next block, then of the next chunk.
        While a tile multiplies, a part of what is `ahead` comes into the cache: the images of the next tile if they are
        many and the weight is there already, or else the weight of the next block."""
        rows = self.convolution.tile.rows
        if self.few_rows and self.convolution.by_rows:
            yield f"if (rows <= {_FEW_ROWS_BY_ROWS}) {{"
            yield from ("    " + text for text in self._few_rows_by_rows(following))
            yield "    return;"
            yield "}"
        if not self.many_rows and self.convolution.by_rows:
            return
        yield "const float *const zeros = weight + packed_elements;"
        yield f"const int64_t down_all = (rows + {rows - 1}) / {rows}, most = (chunk + {rows - 1}) / {rows};"
        yield "const int64_t chunks = down_all > most ? (down_all + most - 1) / most : 1;"
        yield "const int64_t down_chunk = (down_all + chunks - 1) / chunks;  // about equal ones"
        yield f"const int64_t further = {rows} * (down_chunk < down_all ? down_chunk : 1);"
        yield f"const bool much = further * groups * out_channels >= {_MUCH};"
        yield "const int64_t last = down_all * items * (own + 1) / team;"
        yield "for (int64_t at = down_all * items * own / team; at < last;) {"
        yield from (f"    {text}" for text in self.next_tiles())
        yield f"    const int64_t begin = (above + first) * {rows}, below = begin + tiles * {rows};"
        yield "    const int64_t end = below < rows ? below : rows;"
        yield "    const int64_t group = item / blocks, block = item % blocks;"
        yield from (f"    {text}" for text in self.block())
        yield "    const float *from = images + group * channels;"
        yield f"    const int64_t run = channels < {self.run} ? channels : {self.run};"
        if self.of_positions:
            yield f"    const int64_t share = far_images ? {4 * rows} * pixel * run / depth : width * 4 * run / tiles;"
        else:
            yield "    const int64_t share = width * 4 * run / tiles;"
        yield "    const char *ahead = (const char *)(weight + (item + 1) % items * depth * width);"
        if not self.of_positions:
            yield "    int64_t x = begin % out_across, y = begin / out_across % out_height;"
            yield "    int64_t image = begin / (out_across * out_height);"
        if self.few_channels:
            yield "    const int64_t hop = stride_across * pixel;"
        if self.few_rows and not self.convolution.by_rows:
            yield f"    if (rows <= {_FEW_ROWS}) {{"
            yield from ("        " + text for text in self._few_rows(following))
            yield "        continue;"
            yield "    }"
        if self.of_positions:
            if self.many_rows:
                yield from self._panels(prefetches, following)
        else:
            yield f"    for (int64_t row = begin; row < end; row += {rows}) {{"
            yield f"        const int64_t count = end - row < {rows} ? end - row : {rows};"
            yield f"        alignas(64) float tile[{rows} * width];"
            yield from ("        " + text for text in self._positions())
            yield from self._ahead(prefetches)
            yield "        for (int64_t at = 0; at < width; at += part) {"
            yield from ("            " + text for text in self._sums())
            yield "        }"
            if not self.in_registers:
                yield from ("    " + text for text in following)
            yield "    }"
        yield "}"

    def next_tiles(self) -> Iterator[str]:
        """The next tiles of this thread that lie in one chunk and one block of channels."""
        yield "const int64_t above = at / (down_chunk * items) * down_chunk, within = at % (down_chunk * items);"
        yield "const int64_t down = down_all - above < down_chunk ? down_all - above : down_chunk;"
        yield "const int64_t item = within / down, first = within % down;"
        yield "const int64_t tiles = down - first < last - at ? down - first : last - at;"
        yield "at += tiles;"

    def block(self) -> Iterator[str]:
        """Where the channels of a block and their weights begin."""
        if self.convolution.is_padded:
            yield "const int64_t start = 0;"
        else:
            yield "const int64_t latest = out_channels - width;"
            yield "const int64_t start = block * width < latest ? block * width : latest;"
        yield "const int64_t column = group * out_channels + start;"
        yield "const float *const block_weight = weight + (group * blocks + block) * depth * width;"

    def _panels(self, prefetches: list[str], following: list[str]) -> Iterator[str]:
        """All tiles of a block multiply one panel of the channels, then the next one, and their sums wait in memory."""
        rows, packs = self.convolution.tile.rows, self.convolution.matrix is not None
        yield f"    alignas(64) float sums[(panel < channels ? tiles : 1) * {rows} * width];"
        yield "    for (int64_t channel_begin = 0; channel_begin < channels; channel_begin += panel) {"
        yield "        const int64_t left = channels - channel_begin;"
        yield "        const int64_t channel_end = channel_begin + (panel < left ? panel : left);"
        if packs:
            yield from ("        " + text for text in self._pack())
        yield f"        for (int64_t row = begin; row < end; row += {rows}) {{"
        if packs:
            yield f"            const int64_t goal = ((row - begin) / {rows} + 1) * lines * line / tiles;"
            yield "            for (; asked < goal; ++asked) {"
            yield "                __builtin_prefetch(next, 0, 2);"
            yield f"                if (++within_line == line) within_line = 0, next += apart - line * {LINE};"
            yield f"                next += {LINE};"
            yield "            }"
        yield f"            const int64_t count = end - row < {rows} ? end - row : {rows};"
        yield "            float *const tile = sums + (panel < channels ? (row - begin) * width : 0);"
        yield "            const float *const p0 = from + row * pixel;"
        for p in self.positions[1:]:
            yield f"            const float *const p{p} = p{p - 1} + ({p} < count ? pixel : 0);"
        results_follow = "far_results && channel_end == channels"
        yield from ("    " + text for text in self._ahead(prefetches, results_follow))
        yield "            for (int64_t at = 0; at < width; at += part) {"
        yield from ("                " + text for text in self._panel_sums())
        yield "            }"
        if not self.in_registers:
            yield "            if (channel_end < channels) continue;"
            yield from ("        " + text for text in following)
        yield "        }"
        yield "    }"

    def _few_rows(self, following: list[str]) -> Iterator[str]:
        """Tiles that multiply by the matrix as it lies in memory: packing it takes longer than few rows repay."""
        yield "const int64_t row = begin, count = end - begin;"
        yield f"alignas(64) float tile[{_FEW_ROWS} * width];"
        yield "const float *const w = weight + start * apart;"
        # factors of channels and width, few of them, so that kernels of one unit share code
        factors = f"<{1 if self.convolution.in_channels % float_lanes() else 'LANES'}, LANES{self._most_rows(8)}>"
        rows = "from + row * pixel, pixel, w, apart, nullptr, tile, width, count, channels, width"
        yield f"multiply_rows{factors}({rows});"
        yield from following

    def _few_rows_by_rows(self, following: list[str]) -> Iterator[str]:
        """The same where the matrix lies by rows, for several blocks at once, so that memory is read in order."""
        yield "if (rows < 1) return;"  # ahead of all kernels' tiles, it took 1.05 of MobileNetV3's time
        yield "const int64_t whole = out_channels / width, last = blocks * (own + 1) / team;"
        yield "for (int64_t block = blocks * own / team, some; block < last; block += some) {"
        yield f"    const int64_t most = {_SUMS_AT_ONCE} / (rows * width);"
        yield "    const int64_t left = (last < whole ? last : whole) - block;"
        yield "    some = left < 1 ? 1 : left < most ? left : most;"
        yield "    const int64_t column = block < whole ? block * width : out_channels - width;"
        yield "    const int64_t row = 0, count = rows, wide = some * width;"
        yield f"    alignas(64) float tile[{_SUMS_AT_ONCE}];"
        factors = f"<{1 if self.convolution.in_channels % 8 else 8}{self._most_rows(4)}>"
        yield f"    multiply_by_rows{factors}(images, pixel, weight + column, apart, tile, rows, channels, wide);"
        yield "    {"
        yield "        const int64_t width = wide;"
        yield from ("        " + text for text in following)
        yield "    }"
        yield "}"

    def _most_rows(self, most: int) -> str:
        """The last factor of a function that multiplies up to so many rows at once: how many there are, if fewer."""
        rows = self.convolution.rows
        return f", {rows}" if isinstance(rows, int) and rows < most else ""

    def _pack(self) -> Iterator[str]:
        """The panel of the block, from lines that are `apart`, and where the next panel lies."""
        yield "const int64_t deep = channel_end - channel_begin, after = (item + 1) % items * width;"
        yield "const int64_t beyond = after < out_channels - width ? after : out_channels - width;"
        if self.convolution.by_rows:
            yield "const float *const here = weight + channel_begin * apart + start;"
            yield "const float *next = channel_end < channels ? here + deep * apart : weight + beyond;"
            yield f"const int64_t lines = deep, line = {-(-self.convolution.tile.columns // LINE)};"
            yield "for (int64_t channel = 0; channel < deep; ++channel)"
            yield "    for (int64_t at = 0; at < width; at += LANES)"
            yield "        store(packed + channel * width + at, load(here + channel * apart + at));"
        else:
            yield "const float *const here = weight + start * apart + channel_begin;"
            yield "const float *next = channel_end < channels ? here + deep : weight + beyond * apart;"
            yield f"const int64_t lines = width, line = (deep + {LINE - 1}) / {LINE};"
            yield "for (int64_t channel = 0; channel < deep; channel += LANES) {"
            yield "    const int64_t some = deep - channel < LANES ? deep - channel : LANES;"
            yield "    for (int64_t at = 0; at < width; at += LANES) {"
            yield "        vf32 turned[LANES];"
            yield "        load_tile(turned, here + at * apart + channel, apart, LANES, some);"
            yield "        for (int64_t of = 0; of < some; ++of)"
            yield "            store(packed + (channel + of) * width + at, turned[of]);"
            yield "    }"
            yield "}"
        yield "int64_t asked = 0, within_line = 0;"

    def _ahead(self, prefetches: list[str], results_follow: str = "far_results") -> Iterator[str]:
        """Ask for far memory: the images of the next tile, the results of this place in the next chunk."""
        rows = self.convolution.tile.rows
        if not self.of_positions:  # what has been read by no line of positions above, and by no tile before
            yield "        if (far_images && block == 0) {"
            yield "            const int64_t dy = (taps_down - 1) * dilation_down - padding_above;"
            yield "            const int64_t dx = (taps_across - 1) * dilation_across - padding_before;"
            yield "            const int64_t bottom = image * height + y * stride_down + dy;"
            yield "            const float *line = from + (bottom * across + x * stride_across + dx) * pixel;"
            yield "            const int64_t lines = taps_down < stride_down ? taps_down : stride_down;"
            yield "            const int64_t hop = taps_across < stride_across ? stride_across : 1;"
            yield "            for (int64_t y = 0; y < lines; ++y, line -= across * pixel)"
            yield f"                for (int64_t x = 0; x < {rows} * stride_across; x += hop)"
            yield f"                    for (int64_t at = 0; at < channels; at += {LINE})"
            yield "                        __builtin_prefetch(line + x * pixel + at, 0, 2);"
            yield "        }"
        elif self.convolution.matrix is None:
            yield f"        if (far_images) ahead = (const char *)(from + (row + {rows}) * pixel);"
        yield f"        if ({results_follow}) {{"
        yield from ("            " + text for text in prefetches)
        yield "        }"

    def zeros(self) -> Iterator[str]:
        if self.fills_registers:  # constants of the loops that follow would take registers of sums
            yield f'asm volatile("" : : : {_ALL_REGISTERS});'
        for p in self.positions:
            yield f"vf32 {', '.join(f'a{p}_{v} = {{}}' for v in self.vectors)};"

    def stores(self) -> Iterator[str]:
        for p in self.positions:
            for v in self.vectors:
                yield f"store(tile + {p} * width + at + {v} * LANES, a{p}_{v});"

    def _positions(self) -> Iterator[str]:
        """Where the first tap of each position lies: its row, its column, its address."""
        advance = ("++x == out_across) {", "    x = 0;", "    if (++y == out_height) y = 0, ++image;", "}")
        for p in self.positions:
            yield f"const int64_t top{p} = y * stride_down - padding_above;"
            yield f"const int64_t left{p} = x * stride_across - padding_before;"
            yield f"const float *const first{p} = from + ((image * height + top{p}) * across + left{p}) * pixel;"
            yield f"if ({p} < count - 1 && {advance[0]}"
            yield from advance[1:]
        yield f"if ({advance[0]}"
        yield from advance[1:]
        if self.few_channels:
            last = self.positions[-1]
            yield f"const bool in_line = left{last} - left0 == {last} * stride_across;"

    def _sums(self) -> Iterator[str]:
        """The sums of a tile over all taps. Where a tap meets few channels, the addresses of all positions take longer
        than the products; neighbours in a row have equal distances."""
        yield from self.zeros()
        yield "const float *w = block_weight + at;"
        yield "for (int64_t down = 0; down < taps_down; ++down) {"
        for p in self.positions:
            inside = f"(uint64_t)(top{p} + down * dilation_down) < (uint64_t)height"
            yield f"    const uint64_t across{p} = {inside} ? across : 0;"
        yield "    for (int64_t along = 0; along < taps_across; ++along) {"
        yield "        const int64_t dy = down * dilation_down, dx = along * dilation_across;"
        yield "        const int64_t step = (dy * across + dx) * pixel;"
        if self.few_channels:
            last = self.positions[-1]
            inside = f"across0 && left0 + dx >= 0 && left{last} + dx < across"
            yield f"        if (in_line && {inside}) {{"
            yield "            const float *const p0 = first0 + step;"
            yield from (f"            const float *const p{p} = p{p - 1} + hop;" for p in self.positions[1:])
            yield from ("            " + text for text in self.products())
            yield "            continue;"
            yield "        }"
        for p in self.positions:
            inside = f"(uint64_t)(left{p} + dx) < across{p}"
            yield f"        const float *const p{p} = {inside} ? first{p} + step : zeros;"
        yield from ("        " + text for text in self.products())
        yield "    }"
        yield "}"
        yield from self.in_registers or self.stores()

    def _panel_sums(self) -> Iterator[str]:
        """The sums of a tile up to the end of a panel of channels."""
        yield from self.zeros()
        yield "if (channel_begin) {"
        for p in self.positions:
            for v in self.vectors:
                yield f"    a{p}_{v} = load(tile + {p} * width + at + {v} * LANES);"
        yield "}"
        if self.convolution.matrix is None:
            yield "const float *w = block_weight + channel_begin * width + at;"
        else:
            yield "const float *w = packed + at;"
        yield from self.products("channel_begin", "channel_end")
        if self.in_registers:
            yield "if (channel_end == channels) {"
            yield from ("    " + text for text in self.in_registers)
            yield "    continue;"
            yield "}"
        yield from self.stores()

    def products(self, first: str = "0", end: str = "channels") -> Iterator[str]:
        """The products of these channels of one tap, for positions that begin at p0, p1, ..."""
        asks = self.convolution.matrix is None
        if self.run == 1:
            yield f"for (int64_t channel = {first}; OFTEN(channel < {end}); ++channel) {{"
            yield from self._products_of_channel()
            if asks:  # for all lines: to leave some out disturbs what the processor fetches by itself
                yield "    __builtin_prefetch(ahead, 0, 2);"
                yield f"    if (share > {_LINE_BYTES}) {{"
                yield from (f"        __builtin_prefetch(ahead + {line * _LINE_BYTES}, 0, 2);" for line in _MORE_LINES)
                yield "    }"
                yield "    ahead += share;"
            yield "}"
            return
        runs = asks and self.convolution.in_channels > self.run
        yield f"for (int64_t channel = {first}, until; channel < {end};) {{" if runs else "{"
        if asks:  # to ask again for a line while it comes keeps other loads waiting
            yield f"    for (int64_t at = 0; at < share; at += {4 * LINE}) __builtin_prefetch(ahead + at, 0, 2);"
            yield "    ahead += share;"
        if runs:
            yield f"    until = channel + {self.run} < {end} ? channel + {self.run} : {end};"
        else:
            yield f"    int64_t channel = {first}; const int64_t until = {end};"
        steps = _UNROLLED if self.fills_registers else (1,)
        whole = gcd(self.convolution.in_channels, self.run) if runs else self.convolution.in_channels
        unrolled = next(step for step in steps if whole % step == 0)
        yield f"    for (; OFTEN(channel < until); channel += {unrolled}) {{"
        for more in range(unrolled):
            yield "    {"
            yield from self._products_of_channel(more)
            yield "    }"
        yield "    }"
        yield "}"

    def _products_of_channel(self, more: int = 0) -> Iterator[str]:
        yield from (f"    const vf32 w{v} = load(w + {v} * LANES);" for v in self.vectors)
        for p in self.positions:
            yield f"    const vf32 b{p} = splat(p{p}[channel + {more}]);"
            for v in self.vectors:
                if self.fills_registers:  # op_fma would load each weight again, or be a call without FMA
                    yield f'    asm("vfmadd231ps %1, %2, %0" : "+x"(a{p}_{v}) : "x"(w{v}), "x"(b{p}));'
                else:
                    yield f"    a{p}_{v} = op_fma(b{p}, w{v}, a{p}_{v});"
        if self.fills_registers:  # gcc would move sums about from channel to channel, and spill some
            sums = ", ".join(f'"+x"(a{p}_{v})' for p in self.positions for v in self.vectors)
            yield f'    asm("" : {sums});'
        yield "    w += width;"
