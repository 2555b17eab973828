"""What programs do with devices: copies between them, tensors made on them, CPU scalars among tensors of a GPU, views
of any alignment, streams. Compiled, each does as eager on the device."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import EXACT, Tolerance, check, corpus
from tests.gpu.device import DEVICE, only_cuda

import stator

CLOSE = Tolerance(1e-5, 1e-5)
PROGRAMS, program = corpus()


def on_cpu(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    """A maker of random numbers on the CPU: equal ones at each call."""
    return lambda: torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def on_device(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    make = on_cpu(*shape, dtype=dtype)
    return lambda: make().to(DEVICE)


def integers(*shape: int, below: int = 8) -> Callable[[], torch.Tensor]:
    generator = lambda: torch.Generator().manual_seed(2)  # noqa: E731
    return lambda: torch.randint(below, shape, generator=generator()).to(DEVICE)


# ---- tensors that move


@program(on_cpu(20, 30))
def moved_inside(x):
    return x.to(DEVICE).sin() * 2


@program(on_cpu(20, 30))
def moved_and_converted_inside(x):
    return x.to(DEVICE, torch.float16).exp(), x.to(device=DEVICE, dtype=torch.float64, copy=True) + 1


@program(on_device(20, 30))
def moved_back(x):
    return (x.sin() + 1).cpu(), (x * 2).to("cpu", torch.float64)


@program(on_device(20, 30))
def moved_there_and_back(x):
    y = (x + 1).cpu()
    z = (y * 2).to(DEVICE)
    return z.sin() + x, y.sum(), y


@program(on_cpu(40), on_device(40))
def both_devices_compute(x, y):
    a, b = x.sin().cumsum(0), y.cos().cumsum(0)
    return a.to(DEVICE) + b, a + b.cpu()


@program(on_device(16), on_cpu(16))
def copied_into(x, y):
    x.copy_(y)
    y.copy_(x * 2)
    return x + 1, y + 1


@program(on_cpu(20), on_device(20))
def tensors_of_two_devices_cannot_be_added(x, y):
    return x.sin() + y


@program(on_cpu(20), on_device(20))
def asks_for_devices(x, y):
    return x.device, y.device, y.is_cuda, y.get_device(), x.to(y.device) + 1, x.type(y.dtype).to(y) - 1


@program(on_device(20))
def same_device_is_no_copy(x):
    y = x.to(DEVICE)
    y.add_(1)
    return y is x, x * 2


@program(on_cpu(12, 5))
def parameters_made_inside(x):
    weight = torch.nn.Parameter(torch.full((3, 5), 0.25, device=DEVICE))
    bias = torch.zeros(3).to(DEVICE)
    return F.linear(x.to(DEVICE), weight, bias).detach()


# ---- tensors that are made inside


@program(on_device(4))
def factories(x):
    made = [
        torch.zeros(4, device=DEVICE),
        torch.ones(4, device=x.device),
        torch.arange(4, device=DEVICE),
        torch.linspace(0, 1, 4, device=DEVICE),
        torch.full((4,), 2.5, device=DEVICE),
        torch.tensor([1.0, 2.0, 3.0, 4.0], device=DEVICE),
        torch.eye(4, device=DEVICE)[1],
        x.new_zeros(4),
        x.new_tensor([4.0, 3.0, 2.0, 1.0]),
        torch.empty(4, device=DEVICE).fill_(3),
    ]
    return [x + one for one in made], made


@program(on_device(4, 6))
def masks_made_inside(x):
    mask = torch.ones(4, 6, dtype=torch.bool, device=DEVICE).tril()
    return x.masked_fill(~mask, float("-inf")).softmax(-1), torch.triu(x, 1)


@program(on_cpu(4), on_device(4))
def under_a_device_context(x, y):
    with torch.device(DEVICE):
        z = torch.zeros(4) + torch.arange(4)
    return y + z, x + torch.ones(4)


# ---- CPU scalars among tensors of the device


@program(on_device(30), lambda: torch.tensor(2.5))
def scalar_argument_of_the_cpu(x, scale):
    return x * scale + scale, torch.where(x > 0, x, scale), torch.maximum(x, scale), scale * 2


@program(on_device(30), lambda: torch.tensor(2.5))
def scalar_bound_of_the_cpu(x, bound):
    return (x * 2).clamp(max=bound)


@program(on_device(30, dtype=torch.bfloat16), lambda: torch.tensor(1.1, dtype=torch.float64))
def double_scalar_of_the_cpu_and_halves(x, scale):
    return x * scale, scale - x, x.addcmul(x, x), torch.add(x, scale, alpha=2)


@program(on_device(30), lambda: torch.tensor(3))
def integer_scalar_of_the_cpu(x, count):
    return x / count, x**count, count + x.long()


@program(on_device(30), lambda: torch.tensor(2.5))
def computed_scalar_of_the_cpu(x, scale):
    factor = scale.sqrt() + 1  # stays on the CPU
    return x * factor, factor


@program(on_device(30))
def constant_scalar_of_the_cpu(x):
    return x * torch.tensor(0.1, dtype=torch.float64), x + torch.tensor(3)


@program(on_device(30), on_device())
def scalar_of_the_device(x, scale):
    return x * scale, scale * 2.0, x + scale.double()


@program(on_device(30))
def numbers_read(x):
    total = x.sum().item()
    return x + round(total, 2), bool((x > 0).any()), x.shape[0] * 2


@program(on_device(30))
def branches_on_data(x):
    return x * 2 if x.sum() > 0 else x - 2


@program(on_device(9, 4), lambda: torch.tensor([0, 3, 3, 8]))
def indices_of_the_cpu(x, rows):
    return x[rows], x[rows.to(DEVICE)].sum(), x.index_select(0, rows.to(x.device))


@program(on_device(9, 4), lambda: torch.tensor([0, 3, 8]))
def written_at_indices_of_the_cpu(x, rows):
    x[rows] = 1.5
    return x * 2


# ---- views, layouts, writes


@program(on_device(33, 65))
def views(x):
    return x[:, ::2].exp(), x.t() * 2, x[1:, 3:].sum(1), x[5].expand(4, 65) + 1, x.flatten()[7:].cumsum(0)


@program(on_device(33, 65))
def writes_through_views(x):
    x[:, 1::3] += 1
    x.t()[4].mul_(2)
    x[2:5].zero_()
    return x.sum(0)


@program(on_device(8, 3, 16, 16))
def channels_last(x):
    y = x.to(memory_format=torch.channels_last)
    return (y * 2).relu(), y.mean((2, 3)), F.pad(y, (1, 1)), F.interpolate(y, scale_factor=2.0), F.max_pool2d(y, 2)


@program(on_device(6, 8))
def overlapping_memory(x):
    return x.unfold(1, 3, 1).sum(-1), x.as_strided((5, 4), (2, 1)) * 2


@program(lambda: torch.zeros(0, 5, device=DEVICE), on_device(1, 5))
def nothing_and_one_row(x, y):
    return x + 1, x.sum(0), torch.cat([x, y]), y.mean(0), y.var(0)


# ---- kinds of data


@program(on_device(64, 48))
def float8_storage(x):
    e4, e5 = x.to(torch.float8_e4m3fn), (x * 100).to(torch.float8_e5m2)
    return e4.float() * 2, e5.to(torch.bfloat16) + 1, e4, e5


@program(lambda: on_device(64, 48)().to(torch.float8_e4m3fn), lambda: torch.tensor(0.5, device=DEVICE))
def float8_weights(weight, scale):
    return torch.ones(8, 48, device=DEVICE) @ (weight.to(torch.float32) * scale).t()


@program(integers(500, below=2**40))
def wide_integers(x):
    return x * 3 - 1, x // 7, x % 1000, x >> 3, (x & 255).to(torch.uint8), x.to(torch.float64) / 4


@program(lambda: torch.arange(-128, 128, device=DEVICE).to(torch.int8))
def narrow_integers(x):
    return x + x, x * 2, -x, x.abs(), x // 3, x.to(torch.uint8) >> 1, x.sum(), x.bool().sum()


@program(lambda: torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45, 3e38], device=DEVICE))
def special_values(x):
    found = [x.amax(), x.amin(), x.max(0), x.argmax(), x.relu(), x.sign(), x.clamp(-1, 1), x.sort().values, x * 0]
    return (
        *found,
        x.isnan(),
        torch.maximum(x, x.flip(0)),
        torch.fmax(x, x.flip(0)),
        x.to(torch.float16),
        x.int(),
        x.exp(),
    )


@program(on_device(300), integers(300, below=10))
def additions_that_meet(x, rows):
    zeros = torch.zeros(10, device=DEVICE)
    largest = zeros.scatter_reduce(0, rows, x, "amax")
    return zeros.index_add(0, rows, x), zeros.scatter_add(0, rows, x), torch.bincount(rows), largest


@program(on_device(3, 200_000))
def long_rows(x):
    return x.sum(1), x.mean(), x.amax(1), x.argmin(1), x.var(1), x.logsumexp(1), x.softmax(1).amax(1), x.sum(0)


@program(on_device(3, 200_000, dtype=torch.bfloat16))
def long_rows_of_halves(x):
    return x.sum(1), x.mean(), x.amax(1), x.float().std(1)


@program(on_device(1000, 33))
def scans(x):
    y = x.abs()  # the order of additions decides what is left of sums that cancel
    return y.cumsum(0), y.cumsum(1), x.cummax(0), y.logcumsumexp(1), (x > 0).cumsum(0)


@program(on_device(50, 20), integers(50, below=20))
def sizes_that_depend_on_data(x, classes):
    chosen = x[x > 1]
    return chosen * 2, (classes > 3).nonzero(), classes.unique(), x[classes > 30].sum()


@program(on_device(2, 4, 64, 32), on_device(2, 4, 64, 32))
def attention(q, k):
    mask = torch.ones(64, 64, dtype=torch.bool, device=DEVICE).tril()
    causal = F.scaled_dot_product_attention(q, k, q, is_causal=True)
    return causal, F.scaled_dot_product_attention(q, k, q, attn_mask=mask), F.scaled_dot_product_attention(q * 2, k, k)


# values are compared within 1e-5; what is only moved or converted, exactly
EXACTLY = {"float8_storage", "wide_integers", "narrow_integers", "copied_into", "same_device_is_no_copy"}


@pytest.mark.parametrize("case", PROGRAMS)
def test_program(case: Any) -> None:
    if DEVICE == "cpu" and case.function in (tensors_of_two_devices_cannot_be_added,):
        pytest.skip("of two devices")
    check(case, backend="inductor", calls=3, tolerance=EXACT if case.function.__name__ in EXACTLY else CLOSE)


# ---- what changes between calls


def test_scalars_of_the_cpu_are_read_at_each_call() -> None:
    compiled = stator.compile(lambda x, scale: x * scale + 1)
    x = on_device(1000)()
    for value in (2.0, 3.5, -1.0):
        scale = torch.tensor(value)
        assert torch.equal(compiled(x, scale), x * scale + 1)
        scale.add_(1)
        assert torch.equal(compiled(x, scale), x * scale + 1)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int8))
def test_memory_of_another_alignment(dtype: torch.dtype) -> None:
    """Compiled for a tensor at the start of an allocation, called with views that begin anywhere."""
    base = (on_device(4099)() * 50).to(dtype)
    f = lambda x: (x + x, (x * 2).sum(dtype=torch.float32))  # noqa: E731
    compiled = stator.compile(f, dynamic=False)
    for offset in (0, 1, 2, 3, 0, 7, 0):
        x = base[offset : offset + 4092]
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-3)


def test_strides_that_change() -> None:
    f = lambda x: x.sin().sum(1)  # noqa: E731
    compiled = stator.compile(f)
    x = on_device(40, 40)()
    for one in (x, x.t(), x[::2], x[:, ::2], x[:20, :20], x[:1], x[:, :1], x[:0]):
        torch.testing.assert_close(compiled(one), f(one), rtol=1e-5, atol=1e-5)


def test_sizes_that_change() -> None:
    f = lambda x, y: ((x @ y).relu() * 2).softmax(-1)  # noqa: E731
    compiled = stator.compile(f, dynamic=True)
    for n in (3, 17, 64, 1, 100, 257, 1024):
        x, y = on_device(n, 12)(), on_device(12, n + 1)()
        torch.testing.assert_close(compiled(x, y), f(x, y), rtol=1e-5, atol=1e-5)


def test_a_module_that_changes_its_device() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 4)
    )
    twin = copy.deepcopy(model)
    compiled = stator.compile(model)
    for device in ("cpu", DEVICE, "cpu", DEVICE):
        compiled.to(device), twin.to(device)
        x = on_cpu(32, 8)().to(device)
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-5, atol=1e-5)


def test_results_of_earlier_calls_stay() -> None:
    """Also in the mode whose graphs have memory of their own."""
    x = on_device(5000)()
    for mode in ("default", "reduce-overhead"):
        compiled = stator.compile(lambda x, y: (x.sin() + y, x.sum()), mode=mode)
        kept = [compiled(x, x * n) for n in range(6)]
        torch.testing.assert_close(kept, [(x.sin() + x * n, x.sum()) for n in range(6)], rtol=1e-5, atol=1e-4)
        y = x
        for _ in range(5):  # results fed back
            y = compiled(y, x)[0]
        expected = x
        for _ in range(5):
            expected = expected.sin() + x
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_gradients_accumulate_over_steps() -> None:
    for mode in ("default", "reduce-overhead"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(DEVICE)
        twin = copy.deepcopy(model)
        compiled = stator.compile(model, mode=mode)
        for seed in range(4):
            x = on_cpu(8, 16)().to(DEVICE) + seed
            compiled(x).square().sum().backward()
            twin(x).square().sum().backward()
        found, expected = ([p.grad for p in one.parameters()] for one in (model, twin))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_gradients_reach_leaves_of_another_device() -> None:
    def f(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x.to(DEVICE).sin() * scale.to(DEVICE)).sum()

    found = []
    for run in (f, stator.compile(f)):
        x, scale = on_cpu(30)().requires_grad_(), torch.tensor(1.5, requires_grad=True)
        found.append(torch.autograd.grad(run(x, scale), (x, scale)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_deterministic_algorithms_are_deterministic() -> None:
    x, rows = on_device(100_000)(), integers(100_000, below=50)()
    compiled = stator.compile(lambda x, rows: torch.zeros(50, device=DEVICE).index_add(0, rows, x.exp()))
    torch.use_deterministic_algorithms(True)
    try:
        first = compiled(x, rows)
        assert all(torch.equal(compiled(x, rows), first) for _ in range(10))
    finally:
        torch.use_deterministic_algorithms(False)


# ---- autocast


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    convolution = [torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()]
    return torch.nn.Sequential(*convolution, torch.nn.Flatten(), torch.nn.Linear(1024, 10)).to(DEVICE)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("inside", (False, True))
def test_autocast(dtype: torch.dtype, inside: bool) -> None:
    """Within what the narrow dtype itself errs: twice the distance of eager's gradients from those of float32."""

    def steps(run: Callable[..., Any], enabled: bool = True) -> list[torch.Tensor]:
        model, x = network(), on_device(4, 3, 8, 8)()

        def loss(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(DEVICE, dtype, enabled=enabled):
                return F.cross_entropy(model(x), torch.arange(4, device=DEVICE))

        if inside:
            value = run(loss)(x)
        else:
            compiled = run(model)
            with torch.autocast(DEVICE, dtype, enabled=enabled):
                value = F.cross_entropy(compiled(x), torch.arange(4, device=DEVICE))
        value.backward()
        return [value.detach(), *(p.grad for p in model.parameters()), *(b.float() for b in model.buffers())]

    exact, eager = steps(lambda f: f, enabled=False), steps(lambda f: f)
    ours = steps(lambda f: stator.compile(f))
    for mine, theirs, truth in zip(ours, eager, exact, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        limit = 2 * (theirs - truth).norm() + 0.02 * truth.norm() + 1e-6
        assert (mine - truth).norm() <= limit


def test_a_scaled_loop_skips_the_step_of_an_overflow() -> None:
    def train(run: Callable[..., Any]) -> list[Any]:
        model = network()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler(DEVICE, init_scale=256.0)
        compiled, scales = run(model), []
        for turn in range(6):
            x = on_device(4, 3, 8, 8)() * (float("inf") if turn == 2 else 1)
            optimizer.zero_grad()
            with torch.autocast(DEVICE, torch.float16):
                loss = F.cross_entropy(compiled(x), torch.arange(4, device=DEVICE))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            model[1].reset_running_stats()
        return [scales, [p.detach().clone() for p in model.parameters()]]

    (scales, parameters), (found, ours) = train(lambda f: f), train(stator.compile)
    assert found == scales and scales[2] < scales[1]
    for mine, theirs in zip(ours, parameters, strict=True):
        assert (mine - theirs).norm() <= 0.02 * theirs.norm() + 1e-3


# ---- of CUDA alone


@only_cuda
def test_a_compiled_program_is_one_kernel_of_ours() -> None:
    from torch.profiler import ProfilerActivity, profile

    compiled = stator.compile(lambda x: (x.sin().cos() * 2 + 1).relu())
    x = on_device(100_000)()
    compiled(x), compiled(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        compiled(x)
        torch.cuda.synchronize()
    of_gpu = [event.name for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [name for name in of_gpu if "emcpy" not in name and "emset" not in name and "Activity" not in name]
    assert len(kernels) == 1 and "at::native" not in kernels[0], kernels


@only_cuda
def test_cuda_methods_and_pinned_memory() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pinned = x.pin_memory()
        there = pinned.cuda(non_blocking=True) * 2
        return there, x.cuda() + 1, pinned.to("cuda:0", non_blocking=True).sin(), there.cpu()

    x = on_cpu(100, 100)()
    torch.testing.assert_close(stator.compile(f)(x), f(x), rtol=1e-5, atol=1e-5)
    pinned, compiled = x.pin_memory(), stator.compile(lambda x: (x.to(DEVICE, non_blocking=True) + 1, x * 2))
    for _ in range(3):
        torch.testing.assert_close(compiled(pinned), (pinned.cuda() + 1, pinned * 2), rtol=1e-5, atol=1e-5)


@only_cuda
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_kernels_run_on_the_current_stream(mode: str) -> None:
    """The input is written after a long wait on that stream alone."""
    compiled = stator.compile(lambda x: x.sin() + 1, mode=mode)
    compiled(on_device(10_000)()), compiled(on_device(10_000)())
    for _ in range(3):
        stream, x = torch.cuda.Stream(), torch.zeros(10_000, device=DEVICE)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(100_000_000)
            x.fill_(2.0)
            y = compiled(x)
        stream.synchronize()
        torch.testing.assert_close(y, torch.full_like(y, 2.0).sin() + 1)


@only_cuda
def test_streams_inside_of_a_program() -> None:
    side = torch.cuda.Stream()

    def f(x: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x.sin() * 2
        torch.cuda.current_stream().wait_stream(side)
        return y + x.cos()

    compiled = stator.compile(f)
    for n in range(5):
        x = on_device(200_000)() + n
        torch.testing.assert_close(compiled(x), f(x), rtol=1e-5, atol=1e-5)


@only_cuda
def test_threads_with_streams_of_their_own() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() @ x.cos().t()).softmax(-1).sum(0)

    compiled, wrong = stator.compile(f), []
    compiled(on_device(64, 64)())

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for n in range(30):
                x = torch.full((64, 64), 0.1 * seed + 0.01 * n, device=DEVICE)
                if not torch.allclose(compiled(x), f(x), rtol=1e-4, atol=1e-4):
                    wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@only_cuda
def test_a_program_captured_in_a_cuda_graph_of_the_user() -> None:
    compiled = stator.compile(lambda x: (x.sin() * 2).softmax(-1))
    x = on_device(64, 100)()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
    for n in range(3):
        x.fill_(0.5).add_(torch.arange(100, device=DEVICE) * n)
        graph.replay()
        torch.testing.assert_close(y, (x.sin() * 2).softmax(-1), rtol=1e-5, atol=1e-6)


@only_cuda
def test_memory_of_inputs_and_results_is_given_back() -> None:
    compiled = stator.compile(lambda x: (x.sin() @ x.t()).relu().sum(1))
    for _ in range(3):
        compiled(on_device(500, 500)())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        compiled(on_device(500, 500)())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 1_000_000
