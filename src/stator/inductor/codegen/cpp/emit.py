"""Prints one kernel: loops, accumulators, scratch rows, stores. vectorize.py and phases.py make the decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import torch

from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer
from stator.inductor.codegen.index_printer import fits_32_bits
from stator.inductor.codegen.kernel import Kernel, KernelValue, Store, narrowed_by_stores
from stator.inductor.codegen.sampled_means import sampled
from stator.inductor.loops.vocabulary import ORDERED_STORE_MODES
from stator.inductor.sizes import product
from stator.shapes.expr import Expr, ExprLike, FloorDiv, Mod, Symbol

from .column_plan import plan_columns, scans_columns
from .indices import VectorIndexContext, print_vector_index
from .loop_sizes import may_suit_threads, part_bounds, parts, rest, shared_loop, suits_threads, work
from .partial_sums import emit_in_parts, emit_rows_in_parts, part_depth
from .phases import Phase, PhasePlan, plan_phases
from .row_sums import own_rows, row_of_sums, skip_of_others
from .rows_ahead import lines_ahead
from .scans import begin_scan, declare_carries, of_valid_lanes, scanned, scans, short_scan
from .several_accumulators import emit_with_several
from .tiles import SHARED, emit_blocks, emit_tile
from .types import COMBINE, COMBINE_STORED, KIND, SCALAR, VECTOR, identity, literal
from .values import print_value
from .vectorize import LoopOrder, tiled_load

_PARTS = 64  # parts of a reduction to a single row: fixed, so that the result does not depend on the thread count


class Emitter:
    """Prints one kernel. `lanes`: the number of valid lanes at the current point of the text, "LANES" or "n"."""

    def __init__(
        self,
        kernel: Kernel,
        order: LoopOrder,
        pointers: Mapping[str, str],
        buffers: Mapping[str, Buffer],
    ) -> None:
        self.kernel, self.order, self.pointers, self.buffers = kernel, order, pointers, buffers
        self.plan: PhasePlan = plan_phases(
            kernel, order.inner[-1] if order.inner else None, order.vector is not None and order.vector < kernel.outer
        )
        self.lines: list[str] = []
        self.depth = 1
        self.lanes = "LANES"
        self.narrows = True
        self.narrowed_by_stores = narrowed_by_stores(kernel, buffers)
        self.vector_bit = 0 if order.vector is None else 1 << order.vector
        self.lane_symbol = None if order.vector is None else kernel.loops[order.vector]
        self.vector_indirect: dict[Symbol, str] = {}
        self.uses_error = any(value.name == "indirect" and value.args[2] for value in kernel.values)
        self.slot = ""  # the index of the current accumulator, where a value has several
        self.width = 1  # the number of accumulators for each value
        self.part_depth = part_depth(kernel, order)
        self.prefixes: Mapping[int, str] = {}  # of the names of the current accumulators, where they are partial
        self.owned = None if order.vector is None or not may_suit_threads(self.kernel) else row_of_sums(kernel)
        self.columns = plan_columns(kernel, order, self.plan, may_suit_threads(self.kernel))
        self.scans_columns = scans_columns(kernel, order, self.plan)
        self.parallel_at = self._parallel_loop()
        self.split = self._split_reduction()
        streams = dict.fromkeys(value.args[:3] for value in kernel.values if value.name == "random")
        self.random_blocks = {stream: f"random{at}" for at, stream in enumerate(streams)}
        self.bounds: tuple[int, str, str] | None = None  # a loop restricted to a part: its number, begin, end

    # ---- text -------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, head: str, *first: str) -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        for text in first:
            self.line(text)
        yield
        self.depth -= 1
        self.line("}")

    @property
    def threads(self) -> str | None:
        """The number of threads that run the whole text, None if only parts of it are for several."""
        return None if self.parallel_at is None and self.owned is None else f"threads_for({work(self.kernel)})"

    def emit(self) -> list[str]:
        self._random_blocks()
        self._scratch_rows(before_loops=True)
        if self.owned is not None:
            self.lines += ["    " * self.depth + text for text in own_rows(self.kernel, self.owned)]
        elif self.order.vector is None and any(store.mode == "add" for store in self.kernel.stores):
            self.line("const bool alone = omp_get_num_threads() == 1;")
        self._outer(0)
        return self.lines

    def _random_blocks(self) -> None:
        """Each thread's memory of the random words that it made last."""
        for name in self.random_blocks.values():
            self.line(f"random_blocks {name};")

    # ---- loops ------------------------------------------------------------------------------------

    def _parallel_loop(self) -> int | None:
        """The position in the outer order of the loop that threads share."""
        kernel, outer = self.kernel, self.order.outer
        if (
            not outer
            or not may_suit_threads(kernel)
            or any(store.mode in ORDERED_STORE_MODES for store in kernel.stores)
            or self.owned is not None
            or (self.columns is not None and self.columns.split is not None)
        ):
            return None
        step = 16 if self.columns is None else 16 * self.columns.width
        steps = [step if loop == self.order.vector else 1 for loop in outer]
        if self.columns is not None and self.columns.rows:
            outer, steps = outer[:-1], steps[:-1]
        if self.order.blocks_outside:  # the blocks have the place of the vectors, and the vectors that of the tiles
            outer, steps = (*outer[:-2], outer[-1], outer[-2]), [*steps[:-2], step, step]
        return shared_loop(kernel, outer, steps)

    def _split_reduction(self) -> bool:
        """True for a single long row. Threads then share its inner loops, and partial results are combined."""
        unusual = self.kernel.ordered or any(store.mode is not None for store in self.kernel.stores)
        return bool(not self.order.outer and self.order.inner and suits_threads(self.kernel) and not unusual)

    def _outer(self, depth: int) -> None:
        outer = self.order.outer
        for position in self.plan.outside:
            if self._place(position) == depth:
                self._define(position)
        if self.owned is not None and self._place(self.owned) == depth:
            self.line(skip_of_others(self.owned, in_loop=depth > 0))
        if depth == len(outer):
            self._phases()
            return
        if depth == len(outer) - 1 and self._columns_printed():
            return
        loop = partial(emit_rows_in_parts, self) if self.kernel.rows_each else self.loop
        loop(outer[depth], lambda: self._outer(depth + 1), shared=depth == self.parallel_at)

    def _columns_printed(self) -> bool:
        """Print the last outer loop in blocks of columns, if the kernel is such a reduction (ColumnEmitter)."""
        return False

    def _place(self, position: int) -> int:
        """The number of outer loops around a value outside of the inner loops; -1 after reductions."""
        value = self.kernel.values[position]
        if value.phase > 0 or value.name == "constant":
            return -1
        return max((at + 1 for at, loop in enumerate(self.order.outer) if value.loops & (1 << loop)), default=0)

    def loop(self, loop: int, body: Callable[[], None], shared: bool = False) -> None:
        name = self.kernel.loops[loop].name
        if self.bounds is not None and self.bounds[0] == loop:
            self._part_loop(loop, body, *self.bounds[1:])
            return
        if loop == self.order.tile:
            if self.order.blocks_outside:
                emit_tile(self, loop, body)
            else:
                emit_blocks(self, loop, lambda: emit_tile(self, loop, body), shared)
        elif loop == self.order.vector:
            if self.order.blocks_outside and self.order.tile is not None:
                inside = self.parallel_at == len(self.order.outer) - 1
                emit_blocks(self, self.order.tile, lambda: self._vectors(loop, body, inside), shared)
            else:
                self._vectors(loop, body, shared)
        else:
            if shared:
                self.line(SHARED)
            short = short_scan(self.kernel, loop)
            if short:
                self.line(f"#pragma GCC unroll {short}")
            with self.block(f"for (int64_t {name} = 0; {name} < {short or self.kernel.bound(loop)}; ++{name})"):
                body()

    def _vectors(self, loop: int, body: Callable[[], None], shared: bool) -> None:
        name, whole = self.kernel.loops[loop].name, self.kernel.fills_lanes(loop)
        size = self.kernel.bound(loop) if whole else self.kernel.size(loop)
        if whole or isinstance(self.kernel.sizes[loop], Expr) or self.kernel.typical[loop] > 16:
            if shared:
                self.line(SHARED)
            limit = size if whole else f"{size} / LANES * LANES"
            with self.block(f"for (int64_t {name} = 0; {name} < {limit}; {name} += LANES)"):
                body()
            if whole:
                return
            if shared:
                self.line("#pragma omp single nowait")
            head = f"if ({rest(self.kernel, loop)})"
            with self.block(head):
                self.line(f"const int64_t {name} = {size} / LANES * LANES;")
                self._with_lanes("n", body)
            return
        if shared:
            self.line(SHARED)
        with self.block(f"for (int64_t {name} = 0; {name} < {size}; {name} += LANES)"):
            self.line(f"const int n = {size} - {name} < LANES ? {size} - {name} : LANES;")
            self._with_lanes("n", body)

    def size_text(self, size: ExprLike) -> str:
        return self.kernel.text(size) if not isinstance(size, Expr) else f"(int64_t){self.kernel.text(size)}"

    def _part_loop(self, loop: int, body: Callable[[], None], begin: str, end: str) -> None:
        """A loop from `begin` to `end`. Parts are whole vectors, except for the last."""
        name = self.kernel.loops[loop].name
        if loop != self.order.vector:
            with self.block(f"for (int64_t {name} = {begin}; {name} < {end}; ++{name})"):
                body()
            return
        self.line(f"const int64_t whole = {begin} + ({end} - {begin}) / LANES * LANES;")
        with self.block(f"for (int64_t {name} = {begin}; {name} < whole; {name} += LANES)"):
            body()
        if not self.kernel.fills_lanes(loop):
            with self.block(f"if (const int n = (int)({end} - whole))"):
                self.line(f"const int64_t {name} = whole;")
                self._with_lanes("n", body)

    def is_tiled(self, value: KernelValue) -> bool:
        tile, vector = self.order.tile, self.order.vector
        return tile is not None and vector is not None and tiled_load(self.kernel, value, vector, tile)

    def _with_lanes(self, lanes: str, body: Callable[[], None]) -> None:
        self.lanes = lanes
        body()
        self.lanes = "LANES"

    # ---- phases -----------------------------------------------------------------------------------

    def _phases(self) -> None:
        plan = self.plan
        self._scratch_rows(before_loops=False)
        declare_carries(self, plan.phases)
        stores = list(plan.outside_stores)
        self._after_reductions(0, stores)
        for number, phase in enumerate(plan.phases):
            self._phase(phase)
            self._after_reductions(number + 1, stores)

    def _after_reductions(self, phase: int, stores: list[Store]) -> None:
        """Values and stores outside of the inner loops that need exactly this number of complete phases."""
        for position in self.plan.outside:
            value = self.kernel.values[position]
            if value.phase == phase and phase > 0 and value.name not in ("reduce", "constant"):
                self._define(position)
        for store in stores:
            if store.phase == phase:
                self._store(store)

    def _scratch_rows(self, before_loops: bool) -> None:
        """Declare the rows: on the stack inside of the loops; before the loops, on the heap, if their length varies."""
        inner = product(self.kernel.sizes[self.kernel.outer :])
        if isinstance(inner, Expr) is not before_loops:
            return
        for position in [position for phase in self.plan.phases for position in phase.keeps]:
            vectors = self._rows_are_vectors() and self.is_vector(position)
            kind = (VECTOR if vectors else SCALAR)[KIND[self.kernel.values[position].dtype]]
            if before_loops:
                self.line(f"scratch<{kind}> row{position}({self.kernel.text(inner)});")
            elif self._rows_are_vectors():
                self.line(f"{kind} row{position}[{inner}];")
            else:
                self.line(f"alignas(64) {kind} row{position}[{inner} + LANES];")

    def _phase(self, phase: Phase) -> None:
        if self.split:
            self._split_phase(phase)
            return
        for position in phase.reduces:
            self._accumulator(position)
        for position in scans(self.kernel, phase):
            begin_scan(self, position)
        self.bounds = sampled(self.kernel, phase.reduces)
        with self.block("") if self.bounds else nullcontext():
            self._inner(0, phase)
        self.bounds = None
        for position in phase.reduces:
            self._complete(position)

    def _split_phase(self, phase: Phase) -> None:
        first = self.order.inner[0]
        grain = 16 if first == self.order.vector else 1
        chunk, count = parts(self.kernel, first, _PARTS, grain)
        for position in phase.reduces:
            self.line(f"{SCALAR[KIND[self.dtype(position)]]} part{position}[{count}];")
        self.line(f"#pragma omp parallel for schedule(static) num_threads(threads_for({work(self.kernel)}))")
        with self.block(f"for (int64_t part = 0; part < {count}; ++part)"):
            for text in part_bounds(self.kernel, first, chunk):
                self.line(text)
            self._random_blocks()
            for position in phase.reduces:
                self._accumulator(position)
            self.bounds = (first, "begin", "end")
            self._inner(0, phase)
            self.bounds = None
            for position in phase.reduces:
                self._complete(position)
                self.line(f"part{position}[part] = t{position};")
        for position in phase.reduces:
            kind = self.kernel.values[position].args[0]
            name = f"t{position}"
            self.line(f"{SCALAR[KIND[self.dtype(position)]]} {name} = part{position}[0];")
            combined = f"{COMBINE[kind]}({name}, part{position}[part])"
            self.line(f"for (int64_t part = 1; part < {count}; ++part) {name} = {combined};")

    def _inner(self, depth: int, phase: Phase) -> None:
        inner = self.order.inner
        for position in phase.values:
            if self._inner_place(position, phase) == depth:
                if position in phase.fetches:
                    self._fetch(position)
                else:
                    self._define(position)
                if position in phase.keeps:
                    self._keep(position)
        if depth < len(inner):
            body = partial(self._inner, depth + 1, phase)
            loop = partial(self.loop, inner[depth], body)
            emit_in_parts(self, depth, phase, partial(emit_with_several, self, depth, phase, loop, body))
            return
        for position in phase.reduces:
            self._accumulate(position)
        for store in phase.stores:
            self._store(store)

    def _inner_place(self, position: int, phase: Phase) -> int:
        if position in phase.fetches or position in phase.keeps:
            return len(self.order.inner)
        value = self.kernel.values[position]
        return max((at + 1 for at, loop in enumerate(self.order.inner) if value.loops & (1 << loop)), default=0)

    # ---- values -----------------------------------------------------------------------------------

    def is_vector(self, position: int) -> bool:
        return bool(self.kernel.values[position].loops & self.vector_bit)

    def dtype(self, position: int) -> torch.dtype:
        return self.kernel.values[position].dtype

    def operand(self, position: int, vector: bool) -> str:
        value = self.kernel.values[position]
        text = literal(value.args[0], value.dtype) if value.name == "constant" else f"t{position}"
        return f"splat({text})" if vector and not self.is_vector(position) else text

    def _define(self, position: int) -> None:
        value = self.kernel.values[position]
        vector = self.is_vector(position)
        kind = KIND[value.dtype]
        if self.is_tiled(value):
            assert self.order.tile is not None
            name = self.kernel.loops[self.order.tile].name
            self.line(f"const {VECTOR[kind]} t{position} = tile{position}[{name} - {name}b];")
            return
        self.narrows = position not in self.narrowed_by_stores
        text = scanned(self, position) if value.name == "scan" else print_value(self, value, vector)
        if value.name == "indirect":
            name = f"indirect{position}"
            if vector:
                self.vector_indirect[Symbol(name)] = name
            self.line(f"const {VECTOR[kind] if vector else SCALAR[kind]} {name} = {text};")
            return
        self.line(f"const {VECTOR[kind] if vector else SCALAR[kind]} t{position} = {text};")

    def index_number(self, index: Expr, vector: bool) -> str:
        ranges = self.kernel.ranges
        if not vector:
            return f"(int64_t)({self.kernel.indices.index(index)})"
        # divisions of 32-bit numbers have vector instructions
        narrow = any(isinstance(atom, FloorDiv | Mod) for atom in index.atoms) and fits_32_bits(index, ranges)
        text = print_vector_index(index, self._vector_context(narrow))
        return f"convert_i64({text})" if narrow else text

    def _positions(self, index: Expr) -> str:
        """One offset for each lane, for gathers and scatters."""
        return print_vector_index(index, self._vector_context(fits_32_bits(index, self.kernel.ranges)))

    def _vector_context(self, narrow: bool) -> VectorIndexContext:
        return VectorIndexContext(self.lane_symbol, self.vector_indirect, narrow, self.kernel.indices)

    def _step(self, index: Expr) -> ExprLike | None:
        """The distance in elements from one lane to the next; None when it varies."""
        if not index.symbols.isdisjoint(self.vector_indirect):
            return None
        return index.coefficient(self.lane_symbol) if self.lane_symbol is not None else 0

    def at(self, buffer: str, index: Expr) -> str:
        text = self.kernel.indices.index(index)
        return f"{self.pointers[buffer]} + {text}" if text != "0" else self.pointers[buffer]

    def load(self, value: KernelValue, vector: bool) -> str:
        buffer, index, mask, other = value.args
        if mask is None:
            return self._load(buffer, index, vector)
        neutral = literal(other, value.dtype)
        if not vector:
            return f"{self.operand(mask.position, False)} ? {self._load(buffer, index, False)} : {neutral}"
        if not self.is_vector(mask.position):
            read = self._load(buffer, index, True)
            read = read if self._varies(index) else f"splat({read})"
            return f"{self.operand(mask.position, False)} ? {read} : splat({neutral})"
        lanes = self.operand(mask.position, True)
        step = self._step(index)
        if step == 1:
            read = f"load_masked({self.at(buffer, index)}, {lanes}, {self.lanes})"
        elif step is not None:
            read = f"load_strided({self.at(buffer, index)}, {self.size_text(step)}, {lanes}, {self.lanes})"
        else:
            read = f"gather({self.pointers[buffer]}, {self._positions(index)}, {lanes}, {self.lanes})"
        return f"select({lanes}, {read}, splat({neutral}))"

    def random(self, value: KernelValue, vector: bool) -> str:
        seed, stream, draw, index = value.args
        if self.kernel.values[seed.position].loops or self.kernel.values[stream.position].loops:
            raise CompileError("inductor", "a kernel cannot draw random numbers with a seed that varies by element")
        key = f"{self.operand(seed.position, False)}, {self.operand(stream.position, False)}, {draw}"
        blocks = self.random_blocks[value.args[:3]]
        if not vector:
            return f"random_one({blocks}, {key}, {self.kernel.indices.index(index)})"
        if self._step(index) == 1:
            return f"random_run({blocks}, {key}, {self.kernel.indices.index(index)})"
        return f"random_lanes({key}, {self.index_number(index, True)})"

    def _varies(self, index: Expr) -> bool:
        return self.lane_symbol in index.symbols or not index.symbols.isdisjoint(self.vector_indirect)

    def _load(self, buffer: str, index: Expr, vector: bool) -> str:
        if not vector or not self._varies(index):
            return f"load_one({self.at(buffer, index)})"
        step = self._step(index)
        if step == 1:
            return f"load({self.at(buffer, index)}{self._tail()})"
        for line in lines_ahead(self.kernel, self.order, index, step, self.buffers[buffer].layout.dtype.itemsize):
            self.line(f"__builtin_prefetch({self.at(buffer, line)});")
        if step is not None:
            return f"load_strided({self.at(buffer, index)}, {self.size_text(step)}, {self.lanes})"
        return f"gather({self.pointers[buffer]}, {self._positions(index)}, {self.lanes})"

    def _tail(self) -> str:
        return "" if self.lanes == "LANES" else f", {self.lanes}"

    def _store(self, store: Store) -> None:
        vector = bool(store.loops & self.vector_bit)
        step = self._step(store.index)
        target = self.at(store.buffer, store.index)
        value = self.operand(store.value, vector)
        if store.mode is not None or store.mask is not None:
            self._unusual_store(store, target, value)
        elif not vector:
            self.line(f"store_one({target}, {value});")
        elif step == 1:
            self.line(f"store({target}, {value}{self._tail()});")
        elif step is not None and step != 0:
            self.line(f"store_strided({target}, {self.size_text(step)}, {value}, {self.lanes});")
        else:
            index = self._positions(store.index)
            self.line(f"scatter({self.pointers[store.buffer]}, {index}, {value}, {self.lanes});")

    def _unusual_store(self, store: Store, target: str, value: str) -> None:
        """Handles scalars only, except for sums: kernels with other such stores are not vectorised."""
        if self.lane_symbol is not None:
            tail = self._tail()
            text = f"store({target}, op_add(load({target}{tail}), {value}){tail});"
        elif store.mode == "add":
            shared = None if self.parallel_at is None else self.order.outer[self.parallel_at]
            apart = shared is not None and self.kernel.keeps_apart(store.index, shared)
            text = f"add_shared({target}, {value}, {'true' if apart else 'alone'});"
        elif store.mode in COMBINE_STORED:
            text = f"store_one({target}, {COMBINE_STORED[store.mode]}(load_one({target}), {value}));"
        else:
            text = f"store_one({target}, {value});"
        if store.mask is not None:
            text = f"if ({self.operand(store.mask, False)}) {text}"
        self.line(text)

    # ---- scratch rows -----------------------------------------------------------------------------

    def _row(self, position: int) -> str:
        return f"row{position}[{self._inner_position()}]"

    def _inner_position(self) -> str:
        """The number of an iteration of the inner loops."""
        flat = ""
        for loop in range(self.kernel.outer, len(self.kernel.loops)):
            name, size = self.kernel.loops[loop].name, self.kernel.size(loop)
            flat = f"({flat}) * {size} + {name}" if flat else name
        return flat

    def _rows_are_vectors(self) -> bool:
        return self.order.vector is not None and self.order.vector < self.kernel.outer

    def _keep(self, position: int) -> None:
        if self._rows_are_vectors() or not self.is_vector(position):
            value = self.operand(position, self.is_vector(position))
            if not self._rows_are_vectors() and self.vector_bit:
                self.line(f"store(&{self._row(position)}, splat({value}));")
            else:
                self.line(f"{self._row(position)} = {value};")
        elif self._row_step() == 1:
            # Store whole vectors even in a tail: rows are padded, and a later load cannot be forwarded from a masked
            # store. Where the part of another thread may follow, a masked store leaves its memory alone.
            tail = self._tail() if self.split else ""
            self.line(f"store(&{self._row(position)}, t{position}{tail});")
        else:
            step = self.size_text(self._row_step())
            self.line(f"store_strided(&{self._row(position)}, {step}, t{position}, {self.lanes});")

    def _fetch(self, position: int) -> None:
        kind = KIND[self.kernel.values[position].dtype]
        vector = self.is_vector(position)
        row = self._row(position)
        if self._rows_are_vectors() or not vector:
            text = row
        elif self._row_step() == 1:
            text = f"load((const {SCALAR[kind]} *)&{row})"
        else:
            text = f"load_strided((const {SCALAR[kind]} *)&{row}, {self.size_text(self._row_step())}, {self.lanes})"
        self.line(f"const {VECTOR[kind] if vector else SCALAR[kind]} t{position} = {text};")

    def _row_step(self) -> ExprLike:
        """The distance in a scratch row between neighbouring lanes."""
        assert self.order.vector is not None
        return product(self.kernel.sizes[self.order.vector + 1 :])

    # ---- reductions -------------------------------------------------------------------------------

    def lanes_reduced(self) -> bool:
        """True if the lanes run along a loop that is reduced over."""
        return self.order.vector is not None and self.order.vector >= self.kernel.outer

    def wide(self, position: int) -> bool:
        return self.lanes_reduced() or self.is_vector(position)

    def _accumulator(self, position: int) -> None:
        value = self.kernel.values[position]
        kind, source = value.args[0], self.dtype(value.args[1].position)
        wide = self.wide(position)
        types = VECTOR if wide else SCALAR
        neutral = f"splat({identity(kind, source)})" if wide else identity(kind, source)
        self.line(f"{types[KIND[source]]} a{position} = {neutral};")
        if kind.startswith("arg"):
            self.line(f"{self.position_register(position)} p{position} = {self.element_position(position)};")

    def position_register(self, position: int) -> str:
        """Of an argmax or argmin. Positions of 32 bits take one register, where a long row does not need more."""
        if not self.wide(position):
            return "int64_t"
        sizes = self.kernel.sizes[self.kernel.outer :]
        return "vi32" if self.kernel.knowledge.known("<", product(sizes), 2**31) else "vi64"

    def element_position(self, position: int, flat: str = "0") -> str:
        """The position of each lane's element in an iteration of the inner loops."""
        narrow = self.position_register(position) == "vi32"
        number = f"({'int32_t' if narrow else 'int64_t'})({flat})"
        if self.lanes_reduced():
            return f"arange_{'i32' if narrow else 'i64'}({number}, 1)"
        return f"splat({number})" if self.wide(position) else number

    def combining(self, kind: str) -> str:
        """The function that combines two results of a reduction."""
        return COMBINE[kind]

    def _accumulate(self, position: int) -> None:
        value = self.kernel.values[position]
        kind, source = value.args[0], value.args[1].position
        wide = self.wide(position)
        operand = self.operand(source, wide)
        if wide and self.lanes_reduced():
            operand = of_valid_lanes(self, operand, kind, self.dtype(source))
        prefix, slot = self.prefixes.get(position, ""), f"{position}{self.slot}"
        accumulator = f"{prefix}a{slot}"
        if kind.startswith("arg"):
            at = self.element_position(position, self._inner_position())
            self.line(f"update_{kind}({accumulator}, {prefix}p{slot}, {operand}, {at});")
        else:
            self.line(f"{accumulator} = {COMBINE[kind]}({accumulator}, {operand});")

    def _complete(self, position: int) -> None:
        value = self.kernel.values[position]
        kind, source = value.args[0], self.dtype(value.args[1].position)
        result_wide = self.is_vector(position)
        register = (VECTOR if result_wide else SCALAR)[KIND[value.dtype]]
        across = self.wide(position) and not result_wide
        if kind.startswith("arg"):
            found = f"p{position}{self.slot}"
            found = f"convert_i64({found})" if self.position_register(position) == "vi32" else found
            text = f"reduce_{kind}(a{position}, p{position})" if across else found
        else:
            text = f"reduce_{kind}(a{position})" if across else f"a{position}{self.slot}"
            if KIND[source] != KIND[value.dtype]:
                raise CompileError("inductor", f"reduction {kind} of {source} to {value.dtype}")
        self.line(f"const {register} t{position} = {text};")
