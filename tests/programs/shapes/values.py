"""Steps of random programs on values: elementwise functions, reductions, layers, products."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.programs.shapes.writer import ONE, Steps, Writer, broadcast

step = Steps()

# ---- elementwise ----


@step(3)
def pointwise(w: Writer) -> None:
    v = w.value()
    form = w.one_of(
        *("torch.relu({v})", "torch.tanh({v})", "{v}.sigmoid()", "-{v}", "{v}.abs() + 0.5", "{v} * 0.5 + 1"),
        *("F.gelu({v})", "{v}.clamp(-1, 1)", "torch.where({v} > 0.1234, {v}, -0.5)", "{v} * {s}", "{v} / ({s} + 1)"),
        *("{v} + {s} ** 0.5", "{v}.double() - {s} / 2", "{v}.exp().clamp(max=9.0)", "{v}.contiguous()", "{v}.clone()"),
    )
    w.add(form.format(v=v.name, s=w.size(w.number())), v.shape)


@step()
def compared(w: Writer) -> None:
    v = w.value()
    w.add(
        w.one_of(f"{v.name} > 0.1234", f"{v.name}.abs() < 0.7", f"{v.name} > {v.name}.mean() + 0.05"), v.shape, "bool"
    )


@step()
def of_integers(w: Writer) -> None:
    v = w.value("int")
    form = w.one_of("{v} + 1", "{v} * {s}", "{v} % 3", "-{v}", "{v} // 2", "{v}.clamp(max={s})")
    w.add(form.format(v=v.name, s=w.size(w.number())), v.shape, "int")


@step()
def to_float(w: Writer) -> None:
    v = w.value(w.one_of("int", "bool"))
    w.add(f"{v.name}.double()", v.shape)


@step(4)
def binary(w: Writer) -> None:
    v = w.value()
    o = w.value(where=lambda other: broadcast(v.shape, other.shape) is not None)
    form = w.one_of(
        *("{v} + {o}", "{v} - {o}", "{v} * {o}", "{v} / ({o}.abs() + 1)", "torch.maximum({v}, {o})"),
        *("torch.where({v} > {o}, {v}, {o} * 2)", "torch.lerp({v}, {o}, 0.3)"),
    )
    shape = broadcast(v.shape, o.shape)
    assert shape is not None
    w.add(form.format(v=v.name, o=o.name), shape)


@step()
def binary_of_any_shapes(w: Writer) -> None:
    """Raises for most sizes."""
    v = w.value(dims=1)
    o = w.value(where=lambda other: len(other.shape) == len(v.shape))
    w.add(f"{v.name} + {o.name}", v.shape)


@step()
def masked(w: Writer) -> None:
    mask = w.value("bool")
    v = w.value(where=lambda other: broadcast(other.shape, mask.shape) == other.shape)
    w.add(f"{v.name}.masked_fill({mask.name}, {w.one_of('0.25', '-1.0')})", v.shape)


# ---- reductions ----


@step(3)
def reduced(w: Writer) -> None:
    v = w.value()
    dims = sorted(w.draw(st.sets(st.integers(0, max(len(v.shape) - 1, 0)), max_size=2))) if v.shape else []
    keep = w.draw(st.booleans())
    name = w.one_of("sum", "mean", "amax", "amin", "logsumexp", "var")
    if not dims:
        w.add(f"{v.name}.{w.one_of('sum', 'mean')}()", ())
        return
    written = ", ".join(map(str, dims)) + ("," if len(dims) == 1 else "")
    shape = [(ONE if keep else None) if at in dims else size for at, size in enumerate(v.shape)]
    text = f"{v.name}.{name}(({written}), keepdim={keep})"
    w.add(text, tuple(size for size in shape if size is not None))


@step(2)
def along(w: Writer) -> None:
    v = w.value(dims=1)
    _, d = w.dim(v)
    form = w.one_of("torch.softmax({v}, {d})", "{v}.cumsum({d})", "F.log_softmax({v}, {d})", "{v}.flip({d})")
    w.add(form.format(v=v.name, d=d), v.shape)


@step()
def normalized(w: Writer) -> None:
    v = w.value(dims=1)
    s = w.size(v.shape[-1])
    w.add(w.one_of(f"F.layer_norm({v.name}, ({s},))", f"F.normalize({v.name}, dim=-1)"), v.shape)


@step()
def place_of_largest(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    w.add(f"{v.name}.{w.one_of('argmax', 'argmin')}({d})", v.shape[:at] + v.shape[at + 1 :], "int")


@step()
def truth(w: Writer) -> None:
    v = w.value("bool", 1)
    at, d = w.dim(v)
    w.add(f"{v.name}.{w.one_of('any', 'all')}({d})", v.shape[:at] + v.shape[at + 1 :], "bool")
