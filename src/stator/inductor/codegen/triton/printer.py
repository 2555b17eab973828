"""Prints a group as one Triton kernel: a module of text with the kernel, its signature and its launch parameters.

Takes the bodies that the C++ printer takes, merged by the same `merge`. Nothing here imports triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from stator.base.config import Options
from stator.base.errors import CompileError
from stator.inductor.buffers import Buffer
from stator.inductor.codegen.kernel import Kernel, KernelValue, Store
from stator.inductor.program.steps import KernelSource
from stator.inductor.schedule.groups import AttentionGroup, Combination, Group, ProductGroup
from stator.inductor.sizes import NUMBERS_ONLY, SizeKnowledge
from stator.shapes.expr import Expr, ExprLike

from .blocks import ALIGNED, BY_RULE, Blocks, Variation, choose_blocks, neighbours_of_thread, varied
from .divisions import merge_members
from .expressions import print_value
from .joint_reductions import Moments, extrema_with_positions, inner_stores, next_phase_at_once, reductions
from .launch import block_count, index_type, lanes_of, print_grid, programs_of, typed_sizes
from .memory import KernelStatements
from .modules import NUMBER, PrintedPart, pointer_names, print_combination, print_module
from .prelude import HELPERS, joint_name
from .tiled.attention import print_attention
from .tiled.attention_gradients import print_attention_gradients
from .tiled.products import print_products
from .types import identity, literal, number, type_name

_DEFAULT = Options()
_WHOLE_ROW = "tl.arange(0, RBLOCK)[None, :].to(INDEX)"
_EARLY_ELEMENTS = 16  # of a buffer for each thread, in registers during reductions


def print_kernel(
    group: Group | Combination,
    buffers: Mapping[str, Buffer],
    options: Options = _DEFAULT,
    knowledge: SizeKnowledge = NUMBERS_ONLY,
    variation: Variation = BY_RULE,
) -> KernelSource:
    """The text of a module that defines the kernel under `symbol`, SIGNATURE, BLOCKS, WARPS, and `launch`, a function
    of the kernel's sizes that returns the grid and the type of indices. One text serves all sizes, and groups that
    differ only in names give identical text. variation: of the blocks of a group of loops.

    Raises CompileError for operations that Triton kernels cannot compute.
    """
    if isinstance(group, Combination):
        parts = [_print_part(part, buffers, knowledge, NUMBER) for part in group.parts]
        return print_combination(group, parts, buffers)
    if isinstance(group, ProductGroup):
        return print_module(group, print_products(group, buffers, knowledge), buffers)
    if isinstance(group, AttentionGroup):
        printed = print_attention if group.attention.tangent is None else print_attention_gradients
        return print_module(group, printed(group, buffers, knowledge), buffers)
    return print_module(group, _print_part(group, buffers, knowledge, "tl.program_id(0)", variation), buffers)


def _print_part(
    group: Group,
    buffers: Mapping[str, Buffer],
    knowledge: SizeKnowledge,
    number: str,
    variation: Variation = BY_RULE,
) -> PrintedPart:
    kernel = merge_members(group, buffers, knowledge)
    if 0 in kernel.sizes[kernel.outer :]:
        raise CompileError("inductor", "a reduction over no elements reached code generation")
    blocks = varied(kernel, choose_blocks(kernel), variation)
    body = _Emitter(kernel, blocks, pointer_names(group), buffers, number).emit()
    text = "\n".join([*typed_sizes(kernel), *body])
    index = index_type([kernel], lanes_of(blocks))
    constants = {"XBLOCK": blocks.x_block, "RBLOCK": blocks.r_block}
    sizes, programs = kernel.indices.arguments.names, programs_of(kernel, blocks)
    return PrintedPart(text, constants, blocks.warps, print_grid(kernel, blocks), programs, index, sizes)


class _Emitter(KernelStatements):
    """Loops, phases and reductions around the statements of values."""

    def __init__(
        self,
        kernel: Kernel,
        blocks: Blocks,
        pointers: Mapping[str, str],
        buffers: Mapping[str, Buffer],
        number: str,
    ) -> None:
        super().__init__(kernel, blocks, pointers, buffers)
        self.number = f"{number}.to(INDEX)"  # of the program
        self.defined: set[int] = set()
        self.live, self.stepped = kernel.live_values(), kernel.stepped_values()
        self.together = neighbours_of_thread(kernel, blocks)
        self.in_step = False  # inside of the loop of a total
        self.pending: list[Moments] = []  # sums around the mean that follow from sums around another number

    # --- statements ---

    def emit(self) -> list[str]:
        if self.row_sums:
            self._rows_one_after_the_other()
            return self.lines
        self._shared_loops()
        if not self.has_inner:
            self._pointwise()
            return self.lines
        if self.blocks.persistent:
            self._r_loops(_WHOLE_ROW, self.masks_r)
        if self.row_start is not None:
            self._whole_blocks(self.row_start)
        self._all_phases()
        return self.lines

    def _all_phases(self) -> None:
        self._outside(0)
        for phase in range(self.kernel.phases):
            self._phase(phase)
            self._outside(phase + 1)

    def _rows_one_after_the_other(self) -> None:
        """Each program adds up columns of its rows in registers. What all rows share is loaded before them."""
        each = self.kernel.rows_each
        self.line(f"first = {self.number} * {each}")
        self._r_loops(_WHOLE_ROW, self.masks_r)
        for at in range(len(self.row_sums)):
            self.line(f"sum{at} = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)")
        values = self.kernel.values
        self._run([at for at in self.live if not values[at].loops & self.x_bits and not values[at].phase], [])
        self.line(f"for start in tl.range(0, {each}, XBLOCK, num_stages={self.blocks.stages}):")
        with self.indented():
            self.line("x = first + start + tl.arange(0, XBLOCK)[:, None]")
            if self.masks_x:
                self.line(f"xmask = x < {self.size(self.blocks.x_size)}")
            self._split("x", self.blocks.x_loops)
            self._all_phases()
        self._split("first", self.blocks.x_loops)
        lanes = ", rmask" if self.masks_r else ""
        for at, store in enumerate(self.row_sums):
            total = f"tl.reduce(sum{at}, 0, combine_sum)[None, :]"
            self.line(f"tl.store({self.pointers[store.buffer]} + {self.index(store.index)}, {total}{lanes})")

    def _pointwise(self) -> None:
        """A mask that may end anywhere keeps loads from being 16 bytes wide: where the size may be no multiple of 16,
        only the last block has a mask."""
        size = self.blocks.x_size
        if self.blocks.r_loops or not self.blocks.x_masked or self.kernel.knowledge.divides(16, size):
            self._run(self.live, self.kernel.stores)
            return
        position = "place" if self.blocks.programs else self.number
        self.line(f"if ({position} + 1) * XBLOCK <= {self.size(size)}:")
        self.masks_x = False
        with self.indented():
            self._run(self.live, self.kernel.stores)
        self.line("else:")
        self.masks_x = True
        with self.indented():
            self._run(self.live, self.kernel.stores)

    def _shared_loops(self) -> None:
        blocks = self.blocks
        tile = bool(blocks.r_loops) and not self.has_inner
        place = self.number
        if blocks.programs or tile or blocks.row_steps:
            self.line(f"program = {place}")
            if blocks.row_steps:
                pieces = self.size(blocks.pieces)
                self.line(f"begin = program % {pieces} * {blocks.row_steps} * RBLOCK")
                self.line(f"program = program // {pieces}")
            place = self._next_place(block_count(self.kernel, blocks.x_size, "XBLOCK"))
        self.line(f"x = {place} * XBLOCK + tl.arange(0, XBLOCK)" + ("[:, None]" if blocks.r_loops else ""))
        if blocks.x_masked:
            self.line(f"xmask = x < {self.size(blocks.x_size)}")
        self._split("x", blocks.x_loops)
        if tile:
            place = self._next_place(block_count(self.kernel, blocks.r_size, "RBLOCK"))
            self._r_loops(f"{place} * RBLOCK + tl.arange(0, RBLOCK)[None, :]", self.masks_r)
        self._split("program", blocks.programs)

    def _next_place(self, count: str) -> str:
        """Take the fastest of the positions that a program's number stands for."""
        self.line(f"place = program % {count}")
        self.line(f"program = program // {count}")
        return "place"

    def _r_loops(self, lanes: str, masked: bool) -> None:
        self.line(f"r = {lanes}")
        if masked:
            self.line(f"rmask = r < {self.size(self.blocks.r_size)}")
        self._split("r", self.blocks.r_loops)

    def _whole_blocks(self, start: Expr) -> None:
        """Rows that begin anywhere: `first` is the first element in a row at an aligned address, and the `whole`
        elements from there on fill blocks without a mask. A last loop runs over the elements before and behind them."""
        text = f"(-({self.index(start)})) & {ALIGNED - 1}"
        if self.kernel.loops_of(start) & self.x_bits:
            text = f"tl.max(tl.max({text}, 1), 0)"  # of one element
        self.line(f"first = {text}")
        self.line(f"whole = ({self.size(self.blocks.r_size)} - first) // RBLOCK * RBLOCK")

    def _row_loop(self) -> Iterator[None]:
        """Give each loop that, with the others, runs over a row."""
        size, lanes = self.size(self.blocks.r_size), "start + tl.arange(0, RBLOCK)[None, :]"
        steps = self.blocks.row_steps
        end, whole = (f"tl.minimum(begin + {steps} * RBLOCK, {one})" if steps else one for one in (size, "whole"))
        begin = "begin" if steps else "0"
        if self.row_start is None:
            self.line(f"for start in range({begin}, {end}, RBLOCK):")
            with self.indented():
                self._r_loops(f"({lanes}).to(INDEX)", self.masks_r)
                yield
            return
        self.line(f"for start in range({begin}, {whole}, RBLOCK):")
        with self.indented():
            self.aligned, self.masks_r = True, False
            self._r_loops(f"(first + {lanes}).to(INDEX)", False)
            yield
        # the last of the programs that share a row
        rest = f"tl.where(begin + {steps} * RBLOCK < {size}, {size}, whole)" if steps else "whole"
        self.line(f"for start in range({rest}, {size}, RBLOCK):")
        with self.indented():
            self.aligned, self.masks_r = False, True
            self.line(f"lane = ({lanes}).to(INDEX)")
            self.line(f"rmask = lane < {size}")
            self._r_loops("tl.where(lane < whole + first, lane - whole, lane)", False)
            yield

    def _split(self, flat: str, loops: Sequence[int]) -> None:
        """Split a flattened index into the loops' variables."""
        step: ExprLike = 1
        for position in reversed(loops):
            text = flat if step == 1 else f"({flat} // {self.size(step)})"
            if position != loops[0]:
                text = f"{text} % {self.kernel.size(position)}"
            self.line(f"{self.kernel.loops[position].name} = {text}")
            step = step * self.kernel.sizes[position]

    def _phase(self, phase: int) -> None:
        """One run over the inner loops: computes the operands of this phase's reductions and stores."""
        kernel = self.kernel
        self._around_means()
        reduces = [position for position in reductions(kernel, phase) if position not in self.defined]
        stores = [store for store in kernel.stores if store.loops & kernel.inner_bits and store.phase == phase]
        if not reduces and not stores:
            return
        extrema = extrema_with_positions(kernel, reduces)
        reduces = [position for position in reduces if position not in extrema]
        roots = [kernel.values[position].args[1].position for position in reduces]
        for store in stores:
            roots += kernel.store_operands(store)
        needed = self._inner_closure(roots)
        if self.blocks.persistent:
            early = self._loads_for_later() if phase == 0 else []
            self._run([position for position in {*needed, *early} if position not in self.defined], stores)
            self._reduce_at_once(reduces)
        else:
            self._accumulate_rows(phase, reduces, needed, stores)
        for position, of_position in extrema.items():
            self.line(f"a{position} = a{of_position}[:, None]")
            self._finish(position)

    def _inner_closure(self, roots: Iterable[int]) -> list[int]:
        values = self.kernel.values
        return [p for p in self.kernel.closure(roots) if values[p].loops & self.kernel.inner_bits]

    def _accumulate_rows(self, phase: int, reduces: list[int], needed: list[int], stores: list[Store]) -> None:
        behind = next_phase_at_once(self.kernel, phase)
        totals = behind.exponentials if behind else {}
        moments = {one.total: one for one in behind.moments} if behind else {}
        if moments:
            self._around_first_means([*moments])
        for position in reduces:
            self._accumulator(position, position in totals, in_groups=position in totals)
        for position in totals.values():
            self._accumulator(position, in_groups=True)
        for position in (one.squares for one in moments.values() if one.squares is not None):
            self._accumulator(position)
        for position in needed:
            if self.kernel.values[position].name == "scan":
                kind, dtype = self._kind(position), self.dtype(position)
                self.line(f"before{position} = tl.full([XBLOCK, 1], {identity(kind, dtype)}, {type_name(dtype)})")
        if self.blocks.x_block == 1 and self._runs_again(phase + 1 if behind is None else phase + 2):
            self.eviction = "evict_last"
        elif self.eviction:
            self.eviction = "evict_first"
        for _ in self._row_loop():
            self._run(needed, stores)
            for position in reduces:
                if position in moments:
                    self._accumulate_moments(moments[position])
                else:
                    self._accumulate(position, totals.get(position))
        for one in moments.values():
            self._complete_moments(one)
        self._complete([position for position in reduces if position not in totals and position not in moments])
        for position, total in totals.items():
            pair = f"a{position}, a{total}"
            self.line(f"{pair} = tl.reduce(({pair}), 1, combine_largest_and_total)")
            self.line(f"{pair} = finish_largest_and_total(a{position}[:, None], a{total}[:, None])")
            self._finish(position)
            self._finish(total)

    def _runs_again(self, phase: int) -> bool:
        """Whether this phase or a later one runs over the row."""
        later = range(phase, self.kernel.phases)
        return any(reductions(self.kernel, at) or inner_stores(self.kernel, at) for at in later)

    # --- moments in one run ---

    def _around_first_means(self, totals: Sequence[int]) -> None:
        """The means of the first elements of rows, as `first_mean`s."""
        kernel, blocks = self.kernel, self.blocks
        masked = self.masks_r
        self.masks_r = kernel.knowledge.bounded(blocks.r_size)[0] < blocks.r_block
        self._r_loops(_WHOLE_ROW, self.masks_r)
        self._run(self._inner_closure([kernel.values[total].args[1].position for total in totals]), [])
        for total in totals:
            text, name = self._spread(total)[1], type_name(self.dtype(total))
            count = f"tl.minimum(RBLOCK, {self.size(blocks.r_size)})" if self.masks_r else "RBLOCK"
            count = f"({count}).to({name})" if self.masks_r else f"tl.full([], RBLOCK, {name})"
            self.line(f"first_mean{total} = tl.reduce({text}, 1, combine_sum)[:, None] / {count}")
        self.masks_r = masked

    def _accumulate_moments(self, one: Moments) -> None:
        source = self.kernel.values[one.total].args[1].position
        text = f"tl.broadcast_to({self.operand(source)} - first_mean{one.total}, [XBLOCK, RBLOCK])"
        if self.masks_r:
            text = f"tl.where(rmask, {text}, 0.0)"
        self.line(f"distance = {text}")
        self.line(f"a{one.total} += distance")
        if one.squares is not None:
            self.line(f"a{one.squares} += distance * distance")

    def _complete_moments(self, one: Moments) -> None:
        total, squares = f"a{one.total}", f"a{one.squares}"
        if one.squares is None:
            self.line(f"{total} = tl.reduce({total}, 1, combine_sum)")
        else:
            self.line(f"{total}, {squares} = tl.reduce(({total}, {squares}), 1, combine_sum_and_sum)")
        self.line(f"distances{one.total} = {total}[:, None]")
        self.line(f"{total} = first_mean{one.total} * {self._row_size(one)} + distances{one.total}")
        self._finish(one.total)
        self.pending.append(one)

    def _around_means(self) -> None:
        """Sums around means, which are known now, from those around the first means."""
        for one in self.pending:
            count, distances = self._row_size(one), f"distances{one.total}"
            self.line(f"between = {self.operand(one.mean)} - first_mean{one.total}")
            self.line(f"a{one.deviations} = {distances} - between * {count}")
            self._finish(one.deviations)
            if one.squares is not None:
                rest = f"between * (2.0 * {distances} - between * {count})"
                self.line(f"a{one.squares} = a{one.squares}[:, None] - {rest}")
                self._finish(one.squares)
        self.pending.clear()

    def _row_size(self, one: Moments) -> str:
        size, dtype = self.blocks.r_size, self.dtype(one.total)
        if isinstance(size, int):
            return literal(size, dtype)
        return f"({self.size(size)}).to({type_name(dtype)})"

    def _loads_for_later(self) -> list[int]:
        """The loads that later phases need, with their indices. Loads do not move over the barriers of a reduction, so
        all are issued before the first one, if the elements do not take too many registers."""
        kernel, blocks = self.kernel, self.blocks
        loads = [p for p in self.live if kernel.values[p].name == "load" and kernel.values[p].phase == 0]
        if blocks.x_block * blocks.r_block > _EARLY_ELEMENTS * 32 * blocks.warps:
            return []
        return self._inner_closure(loads)

    def _outside(self, phase: int) -> None:
        """Values and stores outside of the inner loops that need exactly this many complete phases."""
        kernel = self.kernel
        values = [
            position
            for position in self.live
            if not kernel.values[position].loops & kernel.inner_bits
            and kernel.values[position].phase == phase
            and kernel.values[position].name != "reduce"
            and position not in self.defined
        ]
        self._run(values, [s for s in kernel.stores if not s.loops & kernel.inner_bits and s.phase == phase])

    def _run(self, values: Iterable[int], stores: Iterable[Store]) -> None:
        """Values and stores in program order."""
        pending = sorted(stores, key=lambda store: store.at)
        for position in sorted(values):
            while pending and pending[0].at <= position:
                self._store(pending.pop(0))
            self._define(position)
        for store in pending:
            self._store(store)

    # --- values ---

    def _define(self, position: int) -> None:
        value = self.kernel.values[position]
        self.defined.add(position)
        if value.name == "constant" or (position in self.stepped and not self.in_step):
            return
        if value.name == "total":
            self._define_total(position, value)
            return
        if value.name == "indirect":
            self._define_indirect(position, value)
            return
        if value.name == "scan":
            self._define_scan(position, value)
            return
        self.line(f"t{position} = {print_value(self, value)}")

    def _define_indirect(self, position: int, value: KernelValue) -> None:
        name, size = f"indirect{position}", self.size(value.args[1])
        self.line(f"{name} = {print_value(self, value)}")
        if value.args[2]:
            valid = f"(0 <= {name}) & ({name} < {size})"
            outside = self.mask(value.loops)
            if outside:
                valid = f"({valid}) | ~({outside})"
            self.line(f'tl.device_assert({valid}, "index out of bounds for dimension with size {size}")')

    def _define_total(self, position: int, value: KernelValue) -> None:
        """A loop inside of an iteration, which Triton compiles once for all of its steps."""
        step, source = (ref.position for ref in value.args)
        lanes = [
            name if value.loops & bits else "1" for name, bits in (("XBLOCK", self.x_bits), ("RBLOCK", self.r_bits))
        ]
        varies = value.loops & (self.x_bits | self.r_bits)
        shape = ", ".join(lanes if self.blocks.r_loops else lanes[:1]) if varies else ""
        self.line(f"t{position} = tl.full([{shape}], 0.0, {type_name(value.dtype)})")
        self.line(f"for t{step} in range({self.kernel.values[step].args[0]}):")
        self.in_step = True
        with self.indented():
            for inner in sorted(self.stepped.intersection(self.kernel.closure([source])) - {step}):
                self._define(inner)
            self.line(f"t{position} += t{source}")
        self.in_step = False

    def _define_scan(self, position: int, value: KernelValue) -> None:
        """No lane needs a neutral element: those without an iteration come last."""
        kind, source = value.args
        block = f"tl.broadcast_to({self.operand(source.position)}, [XBLOCK, RBLOCK])"
        scanned = f"tl.associative_scan({block}, 1, combine_{kind})"
        if self.blocks.persistent:
            self.line(f"t{position} = {scanned}")
            return
        self.line(f"t{position} = combine_{kind}(before{position}, {scanned})")
        self.line(
            f"before{position} = combine_{kind}(before{position}, tl.reduce({block}, 1, combine_{kind})[:, None])"
        )

    # --- reductions ---

    def _spread(self, position: int) -> tuple[str, str, torch.dtype]:
        """(kind, operand over the whole block with neutral lanes where there is no iteration, dtype to reduce in)."""
        kind, source = self.kernel.values[position].args
        dtype = self.dtype(source.position)
        text = f"tl.broadcast_to({self.operand(source.position)}, [XBLOCK, RBLOCK])"
        if self.masks_r:
            text = f"tl.where(rmask, {text}, {identity(kind, dtype)})"
        if dtype is torch.bool:
            dtype = torch.int32  # shuffles do not support one-bit values
            text = f"{text}.to(tl.int32)"
        return kind, text, dtype

    def _flat_position(self) -> str:
        text = "tl.broadcast_to(r, [XBLOCK, RBLOCK])"
        return f"tl.where(rmask, {text}, -1)" if self.masks_r else text

    def _reduce_at_once(self, positions: Sequence[int]) -> None:
        """Reduce whole rows. Reductions of one phase share the exchange between threads."""
        values = {position: self._spread(position)[1] for position in positions}
        for position in positions:
            if self._kind(position).startswith("arg"):
                self._reduce_with_places(position, values[position], self._flat_position())
        self._reduce_jointly([(p, values[p]) for p in positions if not self._kind(p).startswith("arg")])

    def _kind(self, position: int) -> str:
        kind: str = self.kernel.values[position].args[0]
        return kind

    def _reduce_with_places(self, position: int, value: str, places: str) -> None:
        self.defined.add(position)
        self.line(f"a{position}, p{position} = tl.reduce(({value}, {places}), 1, combine_{self._kind(position)})")
        self.line(f"t{position} = p{position}.to(tl.int64)[:, None]")

    def _reduce_jointly(self, values: Sequence[tuple[int, str]]) -> None:
        """Reduce blocks along r to results for each x."""
        kinds = [self._kind(position) for position, _ in values]
        joint = len(values) == 2 and joint_name(*kinds) in HELPERS
        if joint:
            (one, first), (other, second) = values
            self.line(f"a{one}, a{other} = tl.reduce(({first}, {second}), 1, {joint_name(*kinds)})")
        for kind, (position, text) in zip(kinds, values, strict=True):
            reduced = f"a{position}" if joint else f"tl.reduce({text}, 1, combine_{kind})"
            self.line(f"a{position} = {reduced}[:, None]")
            self._finish(position)

    def _accumulator(self, position: int, finite: bool = False, in_groups: bool = False) -> None:
        """finite: the smallest finite number stands for no element, so that distances from it are numbers. in_groups:
        the neighbours that a thread has share an element."""
        kind, source = self.kernel.values[position].args
        dtype = self.dtype(source.position)
        neutral = number(torch.finfo(dtype).min, dtype) if finite else identity(kind, dtype)
        if dtype is torch.bool:
            dtype, neutral = torch.int32, str(int(neutral == "True"))
        columns = f"RBLOCK // {self.together}" if in_groups and self.together > 1 else "RBLOCK"
        self.line(f"a{position} = tl.full([XBLOCK, {columns}], {neutral}, {type_name(dtype)})")
        if kind.startswith("arg"):
            self.line(f"p{position} = tl.broadcast_to(tl.arange(0, RBLOCK)[None, :].to(INDEX), [XBLOCK, RBLOCK])")

    def _accumulate(self, position: int, total: int | None = None) -> None:
        kind, text, _ = self._spread(position)
        if kind.startswith("arg"):
            pair = f"a{position}, p{position}"
            # the last loop over rows that begin anywhere runs over first elements, too
            helper = "combine" if self.row_start is not None and not self.aligned else "append"
            self.line(f"{pair} = {helper}_{kind}({pair}, {text}, {self._flat_position()})")
        elif total is not None:
            pair, name = f"a{position}, a{total}", "append_largest_and_total"
            if self.together > 1:
                text = f"tl.reshape({text}, [XBLOCK, RBLOCK // {self.together}, {self.together}])"
                name = "append_groups_to_largest_and_total"
            self.line(f"{pair} = {name}({pair}, {text})")
        else:
            self.line(f"a{position} = combine_{kind}(a{position}, {text})")

    def _complete(self, positions: Sequence[int]) -> None:
        """Reduce the accumulators of all lanes."""
        for position in positions:
            if self._kind(position).startswith("arg"):
                self._reduce_with_places(position, f"a{position}", f"p{position}")
        self._reduce_jointly([(p, f"a{p}") for p in positions if not self._kind(p).startswith("arg")])

    def _finish(self, position: int) -> None:
        self.defined.add(position)
        value = self.kernel.values[position]
        self.line(f"t{position} = a{position}{' != 0' if value.dtype is torch.bool else ''}")
