"""Lists every stage that turns a captured graph into a fast callable, top to bottom.

The only file that knows all floors. It orders the stages and passes their results on; each stage does its work
elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from stator import aot
from stator.base import counters, dumps, logs
from stator.base.config import Options
from stator.base.errors import MissingToolchain, StatorError, Unsupported, WrongAssumption
from stator.graph import verifier as graph_verifier
from stator.graph.subgraphs.subgraph_ops import SubgraphKey, subgraph_of
from stator.graph.tracing.symbolic_inputs import symbolic_placeholders
from stator.inductor.buffers import Extern, Lowered
from stator.inductor.codegen import cpp, host, triton
from stator.inductor.lower import can_lower, lower, print_lowered, verify_lowered
from stator.inductor.passes import FrozenTensors, freeze_inputs, run_passes, with_expressions
from stator.inductor.program import (
    order_for_memory,
    plan,
    predict_growth,
    predict_peak,
    print_program,
    reuse_dead_memory,
    scratch_bytes,
    verify_program,
    write_inputs,
)
from stator.inductor.program.combine import combine_groups
from stator.inductor.program.recordable import describe_inputs, recording_device, why_not_recorded
from stator.inductor.program.steps import KernelSource, Launch, Program
from stator.inductor.program_cache import PrintedProgram, ProgramEntry, Recording
from stator.inductor.schedule import schedule
from stator.inductor.schedule.attention import fuse_attention
from stator.inductor.schedule.column_sums import sum_columns_in_rows
from stator.inductor.schedule.convolutions import convolution_kernels
from stator.inductor.schedule.groups import Schedule, TiledGroup
from stator.inductor.schedule.printer import print_schedule
from stator.inductor.schedule.products import fuse_products
from stator.inductor.schedule.verifier import verify_schedule
from stator.runtime import cuda
from stator.runtime.cuda import graphs
from stator.runtime.host import Kernel

Compiled = Callable[..., Sequence[Any]]
Observe = Callable[[fx.GraphModule, Compiled], Compiled]

# The arena of a forward or backward stays allocated while the other runs: it must be small beside the memory of that
ARENA_SHARE = 0.002


# The language of kernels for each type of device
LANGUAGES = {"cpu": "cpp", "cuda": "triton"}
KERNEL_PRINTERS: Mapping[str, Callable[..., KernelSource]] = {"cpp": cpp.print_kernel, "triton": triton.print_kernel}


def aot_eager_backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
    """Trace to a functional ATen graph and run it operator by operator: all stages except code generation."""
    return _ahead_of_time(gm, example_inputs, aot.run_eagerly, keep=aot.keep_all)


def inductor_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Options | None = None,
    observe: Observe | None = None,
) -> Compiled:
    """Compile a captured graph to fused kernels.

    observe: called with every functional graph and its compiled callable; the callable that it returns runs instead. By
    then a graph of kernels has meta["peak"]; a graph that runs operator by operator has no memory plan.

    Raises StatorError (Unsupported, CompileError, MissingToolchain) for what cannot be compiled; the caller then runs
    the program eagerly and says so.
    """
    options = options or Options()
    _prepare_compiler(gm, example_inputs)
    frozen = _freezable(gm, example_inputs)
    compile_with: aot.CompileGraph = partial(
        compile_exactly if options.exact_rounding else compile_graph,
        options=options,
        predict=observe is not None,
        frozen=frozen,
    )
    rewrite: aot.Rewrite | None = partial(_rewrite, exact_random=options.exact_random)
    keep: aot.Keep = can_lower
    if options.exact_rounding:  # keep operators whole: most of them call ATen
        keep = aot.keep_all
        rewrite = None if options.exact_random else aot.functionalize_random
    if observe is not None:
        compile_with = _observed(compile_with, observe)
    compiled = _ahead_of_time(
        gm,
        example_inputs,
        compile_with,
        keep=keep,
        rewrite=rewrite,
        memory_budget=options.memory_budget,
        leave_small=_note_left,
    )
    for name, tensors in (("frozen_inputs", frozen.used), ("unread_inputs", frozen.used - frozen.read)):
        gm.meta[name] = [at for at, tensor in enumerate(example_inputs) if id(tensor) in tensors]
    frozen.close()
    return compiled


def _freezable(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> FrozenTensors:
    """The inputs that may become constants: those that each call brings, in code that computes no gradients. The caller
    guards the contents of gm.meta["frozen_inputs"]."""
    fixed = gm.meta.get("fixed_inputs", ())
    if not fixed or aot.needs_grad(gm, example_inputs):
        return FrozenTensors({})
    return FrozenTensors.among(example_inputs[at] for at in fixed)


def _kept_in_training(operator: OpOverload) -> bool:
    """A log-softmax is decomposed where gradients are taken: its backward then computes the result again from the
    maximum and the sum of each row, which are small to keep, without another pass over the row for these."""
    return can_lower(operator) and operator is not torch.ops.aten._log_softmax.default


def _rewrite(gm: fx.GraphModule, exact_random: bool) -> None:
    """Rewrite a functional graph, of a forward or with its backward."""
    if not exact_random:
        aot.functionalize_random(gm)
    rules = aot.GpuRules(triton.library_is_quicker, triton.launch_computes_gradients)
    aot.fuse_attention(gm, rules)
    aot.shorten_attention_gradients(gm, rules.gradients)
    aot.narrow_pooling_places(gm)


def why_left_to_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[str]:
    """Why `inductor_backend` runs the graph, or parts of it, as it is: these are too small to gain. Raises StatorError
    for a graph that cannot be compiled."""
    reasons: list[str] = []
    _ahead_of_time(gm, example_inputs, aot.run_eagerly, keep=can_lower, leave_small=reasons.append)
    return reasons


def _note_left(reason: str) -> None:
    counters.count("left_to_eager")
    logs.log("graph", "the graph runs as it is, because it is too small to gain: %s", reason)


def _leave(graph: fx.GraphModule, leave_small: Callable[[str], object], reason: str) -> None:
    """Mark a graph that runs as it is, so that the program's own code can run instead."""
    graph.meta["left_to_eager"] = reason
    leave_small(reason)


def _observed(compile_functional: aot.CompileGraph, observe: Observe) -> aot.CompileGraph:
    def compile_and_show(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Compiled:
        return observe(gm, compile_functional(gm, example_inputs))

    return compile_and_show


def _counted(compile_functional: aot.CompileGraph, gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Compiled:
    counters.count(f"compiled:{gm.meta.get('part', 'whole')}")
    return compile_functional(gm, inputs)


def _ahead_of_time(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compile_functional: aot.CompileGraph,
    *,
    keep: aot.Keep,
    rewrite: aot.Rewrite | None = None,
    memory_budget: float = 1.0,
    leave_small: Callable[[str], object] | None = None,
) -> Compiled:
    counted = partial(_counted, compile_functional)
    infer = partial(aot.compile_inference, compile_graph=counted, keep=keep, rewrite=rewrite)
    train = partial(
        aot.compile_training,
        compile_graph=counted,
        keep=_kept_in_training if keep is can_lower else keep,
        rewrite=rewrite,
        memory_budget=memory_budget,
    )

    def infer_or_train(
        graph: fx.GraphModule, inputs: Sequence[Any], leave_small: Callable[[str], object] | None
    ) -> Compiled:
        if any(isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg()) for value in inputs):
            logs.log("graph", "the graph runs operator by operator: an input is conjugated or negated lazily")
            return aot.python_function(graph)
        if not aot.needs_grad(graph, inputs):
            return infer(graph, inputs)
        # operators on wrapper subclasses run Python, which costs more than a compiled step
        small = None if graph.meta.get("wraps") else leave_small
        return train(graph, inputs, leave_small=small)

    def compile_plain(given: fx.GraphModule, inputs: Sequence[Any]) -> Compiled:
        leave = None if leave_small is None else partial(_leave, given, leave_small)
        graph, inputs, wrap = aot.carry_numbers(given, inputs)
        try:
            return wrap(infer_or_train(graph, inputs, leave))
        except aot.OverlappingInputs as error:
            logs.warn_once("aot:overlapping-inputs", f"stator: a graph runs eagerly. {error}")
            given.meta["left_to_eager"] = str(error)
            return wrap(aot.python_function(graph))

    try:
        return aot.with_inner_tensors(gm, example_inputs, compile_plain)
    except (MissingToolchain, WrongAssumption):
        raise
    except StatorError as error:
        # the graph may compile with fixed sizes, and in parts between sizes that depend on data
        if symbolic_placeholders(gm) or any(node.meta.get("data_dependent") for node in gm.graph.nodes):
            raise Unsupported("dynamic-shape", str(error)) from error
        raise


def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    options: Options,
    predict: bool = False,
    frozen: FrozenTensors | None = None,
) -> Compiled:
    """Compile a functional graph of ATen operators to a callable of its tensors that returns a tuple. For the forward
    and backward of training steps, or with `predict`, gm.meta["peak"] is set to the memory that a call needs.

    frozen: the tensors among the inputs that may become constants."""
    if options.verify:
        graph_verifier.verify(gm)
    _compile_parts(gm, options)
    with counters.timed("program_cache"):
        kept = not predict and not (frozen is not None and frozen.tensors)
        entry = ProgramEntry(gm, example_inputs, options) if kept else None
        program = None if entry is None else entry.find()
    if program is None:
        program = _program_of(gm, example_inputs, options, predict, frozen)
        if entry is not None:
            entry.keep(program)
    if program.peak is not None:
        gm.meta["peak"] = program.peak
        if "part" in gm.meta:
            counters.largest(f"memory:{gm.meta['part']}_peak", program.peak.bytes)
    call = _load(program, options)
    return _recorded(call, program.recording, gm) if program.recording else call


def _program_of(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    options: Options,
    predict: bool,
    frozen: FrozenTensors | None,
) -> PrintedProgram:
    """Lower, schedule, print: all that compiles a graph but the compilers of its kernels."""
    with counters.timed("lower"):
        gm, sizes = with_expressions(gm)
        if frozen is not None:
            gm = freeze_inputs(gm, example_inputs, frozen)
        gm = run_passes(gm, options.exact_rounding)
        timed = cpp.compiled_convolutions
        lowered = lower(gm, options.exact_rounding, sizes, compiled_convolutions=timed, tunes=options.tunes)
    dumps.write("30_loops.txt", lambda: print_lowered(lowered))
    if options.verify:
        verify_lowered(lowered)
    with counters.timed("schedule"):
        scheduled = convolution_kernels(schedule(lowered, options), lowered, options.fusion)
        scheduled, lowered = _with_product_kernels(scheduled, lowered, options)
        if options.fusion and not options.exact_rounding:
            scheduled, lowered = sum_columns_in_rows(scheduled, lowered)
        if "part" in gm.meta:
            freed = set(lowered.inputs) - _held(gm, lowered.inputs) if gm.meta.get("boxed") else ()
            scheduled = order_for_memory(lowered, scheduled, freed)
        if options.fusion:
            scheduled = combine_groups(scheduled, lowered)
    _show_schedule(scheduled)
    if options.verify:
        verify_schedule(scheduled, lowered)
    with counters.timed("codegen"):
        lowered, scheduled = write_inputs(lowered, scheduled)
        kernels = _print_kernels(scheduled, lowered, options)
        program = plan(
            lowered,
            scheduled,
            kernels,
            _parameters(lowered, example_inputs),
            boxed=bool(gm.meta.get("boxed")),
            arena_share=ARENA_SHARE if "part" in gm.meta else None,
        )
        if "part" in gm.meta:
            program = reuse_dead_memory(program, _held(gm, program.inputs))
    dumps.write("50_program.txt", lambda: print_program(program))
    if options.verify:
        verify_program(program)
    peak = predict_peak(program, _held(gm, program.inputs)) if predict or "part" in gm.meta else None
    recording = _recording(program, gm) if options.records else None
    source = host.print_host(program)
    return PrintedProgram(source, host.compile_text(source.text), _kernels_by_device(program), peak, recording)


def compile_exactly(
    gm: fx.GraphModule,
    example_inputs: Sequence[torch.Tensor],
    *,
    options: Options,
    predict: bool = False,
    frozen: FrozenTensors | None = None,
) -> Compiled:
    """`compile_graph` under `exact_rounding`. A graph that it cannot compile runs operator by operator in ATen."""
    try:
        return compile_graph(gm, example_inputs, options=options, predict=predict, frozen=frozen)
    except StatorError as error:
        logs.log("graph", "a graph runs operator by operator: %s", error)
        counters.count("exact_by_operators")
        return aot.run_eagerly(gm, example_inputs)


def _compile_parts(gm: fx.GraphModule, options: Options) -> None:
    """Compile the graphs that nodes of this graph run: branches, bodies of loops."""
    for node in gm.graph.nodes:
        part = subgraph_of(node)
        if part is not None:
            with dumps.compilation(f"{node.name}_of_{part}"):
                node.update_arg(1, SubgraphKey(part.compiled(partial(_compile_part, options=options))))
            counters.count("parts")


def _compile_part(gm: fx.GraphModule, options: Options) -> Compiled:
    inputs = sum(node.op == "placeholder" for node in gm.graph.nodes)
    return compile_graph(gm, [_NO_PARAMETER] * inputs, options=options)


_NO_PARAMETER = torch.empty(0)


def _with_product_kernels(scheduled: Schedule, lowered: Lowered, options: Options) -> tuple[Schedule, Lowered]:
    """Compute products in kernels of our own where these win, unless eager's bits are asked for."""
    if options.exact_rounding or not options.fusion:
        return scheduled, lowered
    scheduled, lowered = fuse_attention(scheduled, lowered, partial(triton.choose_attention, lowered=lowered))
    rule = partial(triton.choose_tile, lowered=lowered)
    return fuse_products(scheduled, lowered, triton.Tuner(lowered) if options.tunes else rule)


def _show_schedule(scheduled: Schedule) -> None:
    dumps.write("40_schedule.txt", lambda: print_schedule(scheduled))
    if logs.enabled("schedule"):
        logs.log("schedule", "%s", print_schedule(scheduled))


def _print_kernels(scheduled: Schedule, lowered: Lowered, options: Options) -> dict[str, KernelSource]:
    """Print the kernels. Those for GPUs compile from then on, while other stages work; products take longest."""
    groups = [step for step in scheduled.steps if not isinstance(step, Extern)]
    printed = {}
    tuner = triton.BlockTuner(lowered) if options.tunes else None
    for group in sorted(groups, key=lambda group: not isinstance(group, TiledGroup)):
        device = lowered.buffers[group.writes[0]].layout.device
        language = LANGUAGES.get(device.type, "cpp")
        tuned = {"variation": tuner(group)} if tuner and language == "triton" else {}
        print_kernel = KERNEL_PRINTERS[language]
        printed[group.name] = kernel = print_kernel(group, lowered.buffers, options, lowered.sizes, **tuned)
        if device.type == "cuda":
            cuda.start_kernel(kernel, device)
    return {group.name: printed[group.name] for group in groups}


def _held(gm: fx.GraphModule, inputs: Sequence[str]) -> set[str]:
    """Inputs that others keep alive during a call."""
    return {inputs[position] for position in gm.meta.get("held", ())}


def _parameters(lowered: Lowered, example_inputs: Sequence[torch.Tensor]) -> list[str]:
    """Inputs that are nearly always the same tensor: views of them are worth keeping between calls."""
    named = zip(lowered.inputs, example_inputs, strict=True)
    return [name for name, tensor in named if isinstance(tensor, torch.nn.Parameter)]


def _load(program: PrintedProgram, options: Options) -> Compiled:
    kernels = [kernel for found in program.kernels.values() for kernel in found]
    dumps.write("60_code.cpp", lambda: "\n".join(kernel.source for kernel in kernels if kernel.language == "cpp"))
    for kernel in kernels:
        if kernel.language == "triton":
            dumps.write(f"60_{kernel.symbol}.py", kernel.source)
    dumps.write("60_code.py", program.source.text)
    if logs.enabled("code"):
        logs.log("code", "%s\n%s", "\n".join(kernel.source for kernel in kernels), program.source.text)
    with counters.timed("build"):
        built = _build(program, options)
    counters.count("kernels", len(kernels))
    return host.load(program.source, built, program.code)


def _recording(program: Program, gm: fx.GraphModule) -> Recording | None:
    """What replaying a program on a GPU as a CUDA graph takes."""
    device = recording_device(program)
    if device is None:
        return None
    need = need_beyond_saved = 0
    if not program.size_bindings:
        scratch = scratch_bytes(program)
        need = predict_peak(program, program.inputs, graphs.LARGE_BYTES).bytes + scratch
        held = _held(gm, program.inputs)
        need_beyond_saved = predict_growth(program, held, graphs.LARGE_BYTES) + scratch
    refused = why_not_recorded(program, device, _places(gm))
    return Recording(str(device), refused, describe_inputs(program), need, need_beyond_saved)


def _places(gm: fx.GraphModule) -> dict[str, Any]:
    return {node.name: node.meta["place"] for node in gm.graph.nodes if node.meta.get("place")}


def _recorded(call: Compiled, recording: Recording, gm: fx.GraphModule) -> Compiled:
    """A program on a GPU, replayed as a CUDA graph."""
    first = next(iter(_places(gm).values()), None)
    name = f"the {gm.meta.get('part', 'whole')} graph{f' of {first}' if first else ''}"
    if recording.refused:
        graphs.refuse(name, recording.refused)
        return call
    pool = graphs.pool_of(torch.device(recording.device))
    return graphs.record(
        call, recording.inputs, pool, name, gm.meta.get("visible"), recording.need, recording.need_beyond_saved
    )


def _kernels_by_device(program: Program) -> dict[str, list[KernelSource]]:
    found: defaultdict[str, dict[str, KernelSource]] = defaultdict(dict)
    for step in program.steps:
        if isinstance(step, Launch):
            device = program.buffers[step.args[-1]].layout.device
            found[str(device)][step.kernel] = program.kernels[step.kernel]
    return {device: list(kernels.values()) for device, kernels in found.items()}


def _build(program: PrintedProgram, options: Options) -> dict[tuple[str, str], Kernel]:
    """The kernels of a program, by symbol and device."""
    built: dict[tuple[str, str], Kernel] = {}
    for device, kernels in program.kernels.items():
        built |= host.build_cpu_kernels([one for one in kernels if one.language == "cpp"], options.threads)
        loaded = cuda.load_kernels([one for one in kernels if one.language == "triton"], torch.device(device))
        built |= {(symbol, device): kernel for symbol, kernel in loaded.items()}
    return built


def _prepare_compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Let the process that compiles kernels for GPUs start while the graph is traced and lowered."""
    devices = {tensor.device.type for tensor in inputs if isinstance(tensor, torch.Tensor)}
    if "cuda" in devices:
        sizes = [tuple(tensor.shape) for tensor in inputs if isinstance(tensor, torch.Tensor)]
        cuda.prepare(f"{gm.graph}\n{sizes}")


__all__ = ["aot_eager_backend", "compile_graph", "inductor_backend"]
