"""Steps of random programs with sizes as numbers: tensors made of them, branches, loops, writes to slices."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.programs.shapes.writer import ONE, Size, Steps, Value, Writer, broadcast, product, sliced_part

step = Steps()

# ---- tensors made of sizes ----


@step(2)
def made(w: Writer) -> None:
    first, second = w.number(), w.number()
    s, t = w.size(first), w.size(second)
    text, shape, kind = w.one_of(
        (f"torch.arange({s})", (first,), "int"),
        (f"torch.arange({s}, dtype=torch.float64)", (first,), "float"),
        (f"torch.arange({s} * {t}).reshape({s}, {t})", (first, second), "int"),
        (f"torch.zeros({s}, {t}, dtype=torch.float64)", (first, second), "float"),
        (f"torch.full(({s},), {t} / 4, dtype=torch.float64)", (first,), "float"),
        (f"torch.eye({s}, dtype=torch.float64)", (first, first), "float"),
        (f"x.new_ones({s}, {t})", (first, second), "float"),
        (f"torch.tensor([{s}, {t}])", (Size(2),), "int"),
        (f"torch.ones({s}, {t}, dtype=torch.bool).tril()", (first, second), "bool"),
        (f"torch.arange({s})[:, None] < torch.arange({t})", (first, second), "bool"),
        (f"torch.arange(0, {s}, 2)", (Size(f"({first.text} + 1) // 2"),), "int"),
    )
    w.add(text, shape, kind)


@step()
def padded(w: Writer) -> None:
    v = w.value(dims=1)
    before, after = w.one_of(("1", "0"), ("0", "2"), ("a", "1"), ("0", "max(8 - b, 0)"), ("-1", "1"))
    shape = (*v.shape[:-1], Size(f"({v.shape[-1].text}) + {before} + {after}"))
    w.add(f"F.pad({v.name}, ({before}, {after}){w.one_of('', ', value=0.5')})", shape)


@step()
def pooled(w: Writer) -> None:
    v = w.value(where=lambda one: len(one.shape) in (2, 3))
    length = v.shape[-1].text
    text, size = w.one_of(
        (f"F.avg_pool1d({v.name}, 2)", f"({length}) // 2"),
        (f"F.max_pool1d({v.name}, 2, 1)", f"max(({length}) - 1, 0)"),
        (f"F.adaptive_avg_pool1d({v.name}, 2)", "2"),
        (f"F.conv1d({v.name}.unsqueeze(-2).flatten(0, -3), x.new_ones(1, 1, 2)).mean()", None),
        (
            f"F.interpolate({v.name}.reshape(1, -1, {w.size(v.shape[-1])}), scale_factor=2.0).sum((0, 1))",
            f"({length}) * 2",
        ),
    )
    w.add(text, () if size is None else (Size(size),) if "interpolate" in text else (*v.shape[:-1], Size(size)))


@step(2)
def repeated(w: Writer) -> None:
    v = w.value(dims=1, where=lambda one: len(one.shape) < 4)
    at, d = w.dim(v)
    n = w.number()
    s = w.size(n)
    rest = (*v.shape[:at], product((v.shape[at], n)), *v.shape[at + 1 :])
    ones = ", ".join("1" if other != at else s for other in range(len(v.shape)))
    text, shape = w.one_of(
        (f"{v.name}.repeat({ones})", rest),
        (f"{v.name}.tile({ones})", rest),
        (f"{v.name}.repeat_interleave({s}, {d})", rest),
        (f"{v.name}.broadcast_to(({s}, *{v.name}.shape))", (n, *v.shape)),
        (f"{v.name}.expand({s}, *{v.name}.shape)", (n, *v.shape)),
        (f"{v.name}.new_zeros(({s},) + {v.name}.shape[1:])", (n, *v.shape[1:])),
    )
    w.add(text, shape)


@step()
def sorted_(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    k = w.number()
    text, size = w.one_of(
        (f"{v.name}.sort({d}).values", None),
        (
            f"{v.name}.topk(min({w.size(k)}, {v.name}.shape[{d}]), {d}).values",
            Size(f"min({k.text}, {v.shape[at].text})"),
        ),
        (f"{v.name}.cummax({d}).values", None),
        (f"{v.name}.median({d}, keepdim=True).values", ONE),
        (f"{v.name}.kthvalue(1, {d}, keepdim=True).values", ONE),
        (f"{v.name}.cumprod({d})", None),
        (f"torch.diff({v.name}, dim={d})", Size(f"max(({v.shape[at].text}) - 1, 0)")),
    )
    w.add(text, v.shape if size is None else (*v.shape[:at], size, *v.shape[at + 1 :]))


@step()
def unbound(w: Writer) -> None:
    """The number of tensors is a size."""
    v = w.value(dims=1)
    at, d = w.dim(v)
    rest = v.shape[:at] + v.shape[at + 1 :]
    text, shape = w.one_of(
        (f"torch.stack({v.name}.unbind({d}))", (v.shape[at], *rest)),
        (f"sum({v.name}.unbind({d}), torch.zeros(()).double())", rest),
        (f"torch.stack([row * i for i, row in enumerate({v.name})])", v.shape),
        (f"torch.cat([part + 1 for part in {v.name}.split(2)])", v.shape),
    )
    w.add(text, shape)


@step()
def layers(w: Writer) -> None:
    """Layers whose weights have sizes of the program."""
    v = w.value(dims=2)
    s, wide = w.size(v.shape[-1]), w.number()
    text, shape = w.one_of(
        (f"F.linear({v.name}, torch.full(({w.size(wide)}, {s}), 0.25).double())", (*v.shape[:-1], wide)),
        (f"F.batch_norm({v.name}.flatten(0, -2), None, None, training=True)", (product(v.shape[:-1]), v.shape[-1])),
        (f"F.group_norm({v.name}, 1)", v.shape),
        (f"F.rms_norm({v.name}, ({s},))", v.shape),
        (f"F.glu(torch.cat(({v.name}, {v.name}), -1))", v.shape),
        (f"F.cosine_similarity({v.name}, {v.name} + 1, dim=-1)", v.shape[:-1]),
        (f"torch.cdist({v.name}, {v.name} + 1)", (*v.shape[:-1], v.shape[-2])),
        (
            f"F.conv2d({v.name}.flatten(0, -3)[None, None] if {v.name}.dim() > 2 else {v.name}[None, None], "
            "torch.ones(1, 1, 3, 3).double(), padding=1).sum((0, 1)).mean()",
            (),
        ),
        (
            # without classes no target is valid, and an unused value does not tell whether one was
            f"F.cross_entropy({v.name}.flatten(0, -2), "
            f"torch.full({v.name}.shape[:-1], 0 if {v.name}.shape[-1] else -100).flatten())",
            (),
        ),
        (f"F.one_hot(index, {w.size(Size('max(a, 2)'))}).double()", (Size("a"), Size("max(a, 2)"))),
    )
    w.add(text, shape)


@step()
def grids(w: Writer) -> None:
    s, t = w.number(), w.number()
    text, shape, kind = w.one_of(
        (f"torch.meshgrid(torch.arange({s.text}), torch.arange({t.text}), indexing='ij')[1]", (s, t), "int"),
        (f"torch.linspace(0, 1, {s.text}, dtype=torch.float64)", (s,), "float"),
        (f"torch.tril_indices({s.text}, {s.text})[0]", (Size(f"({s.text}) * (({s.text}) + 1) // 2"),), "int"),
        (f"torch.ones({s.text}, {t.text}).double().cumsum(0)", (s, t), "float"),
        (f"torch.arange({s.text}).view(1, -1).expand({t.text}, -1)", (t, s), "int"),
        (f"x.new_empty({s.text}, {t.text}).fill_(0.5)", (s, t), "float"),
    )
    w.add(text, shape, kind)


@step()
def interrupted(w: Writer) -> None:
    """A graph break; values and sizes are carried over."""
    w.lines.append("stator.graph_break()")


@step()
def of_the_shape(w: Writer) -> None:
    """Python code on shapes, whose number goes on as a tensor."""
    v = w.value(dims=1)
    s = w.size(w.number())
    w.lines += w.one_of(
        [f"shapes = [tuple(one.shape) for one in (x, y, {v.name})]", "k = sum(sum(shape) for shape in shapes)"],
        [f"shapes = {{'x': x.shape, 'v': {v.name}.shape[::-1]}}", "k = math.prod(shapes['v']) + shapes['x'][0]"],
        [f"*_, k = {v.name}.shape"],
        [f"k = max({v.name}.shape, default=0)"],
        [f"k = math.ceil({s} / 2) + int(math.sqrt(a))"],
        [f"k = len(f'{{{v.name}.shape[0]}}') + divmod({s}, 3)[1]"],
        [f"k = next((i for i, size in enumerate({v.name}.shape) if size == {s}), -1)"],
        ["try:", f"    k = a // ({s} - 2)", "except ZeroDivisionError:", "    k = -1"],
        [f"assert {v.name}.dim() < 9, 'too many'", f"k = {v.name}.nelement() % 7"],
        [f"if {s} > 9:", "    raise ValueError(f'{a} is too long')", f"k = min({s}, 5)"],
        ["k = 0", f"while k * k < {s}:", "    k += 1"],
    )
    w.add(f"{v.name} * k", v.shape)
    w.numbers.append("k")


# ---- writes ----


@step(2)
def written(w: Writer) -> None:
    v = w.value(where=lambda one: one.writable)
    o = w.value(where=lambda other: broadcast(v.shape, other.shape) == v.shape)
    target = v.name
    if w.draw(st.booleans()):
        w.lines.append(f"{v.name} = {v.name}.clone()")
    form = w.one_of("{v}.add_({o})", "{v} *= 0.5", "{v}.copy_({o})", "{v}.mul_({o})", "{v}.fill_({s})", "{v}.zero_()")
    w.lines.append(form.format(v=target, o=o.name, s=w.size(w.number())))


@step(2)
def written_partly(w: Writer) -> None:
    v = w.value(dims=1, where=lambda one: one.writable)
    text, _ = sliced_part(w, v)
    if w.draw(st.booleans()):
        w.lines.append(f"{v.name} = {v.name}.clone()")
    form = w.one_of("{v}[{t}] = 0.25", "{v}[{t}] += 1", "{v}[{t}] *= {s}", "{v}[{t}].zero_()")
    w.lines.append(form.format(v=v.name, t=text, s=w.size(w.number())))


# ---- numbers and branches ----


@step()
def computed_number(w: Writer) -> None:
    v = w.value(dims=1)
    _, d = w.dim(v)
    name = f"k{len(w.numbers)}"
    s, t = w.size(w.number()), w.size(w.number())
    form = w.one_of(
        *("{s} + {t}", "{s} * {t}", "{s} // ({t} + 1)", "max({s}, {t})", "{v}.numel()", "{v}.size({d})", "len({v})"),
        *(
            "{s} / ({t} + 1)",
            "({s} + 1) ** 0.5",
            "int({s} * 0.5)",
            "-(-{s} // 2)",
            "{v}.dim() + {s}",
            "{s} % ({t} + 2)",
        ),
        *(
            "round({s} / 3)",
            "{v}.stride({d})",
            "sum({v}.shape)",
            "float({s})",
            "abs({s} - {t})",
            "{s} == {t}",
            "bool({s})",
        ),
    )
    w.lines.append(f"{name} = {form.format(s=s, t=t, v=v.name, d=d)}")
    w.numbers.append(name)


@step(2)
def branch(w: Writer) -> None:
    v = w.value()
    s, t = w.size(w.number()), w.size(w.number())
    condition = w.one_of(
        *("{s} > {t}", "{s} == {t}", "{s} % 2 == 0", "{v}.numel() > 12", "{s} in (3, 7)", "{s} and {t}", "not {s}"),
        *("{v}.is_contiguous()", "{s} * 2 <= {t} < 20", "{v}.shape == x.shape", "{s} < 4 or {t} > 5"),
    ).format(s=s, t=t, v=v.name)
    ways = w.one_of(("{v} + 1", "{v} * 2"), ("{v}.tanh()", "{v} - 1"), ("{v} * {s}", "{v}"))
    name = f"v{sum(one.name.startswith('v') for one in w.values)}"
    one, other = (form.format(v=v.name, s=s) for form in ways)
    if w.draw(st.booleans()):
        w.lines.append(f"{name} = {one} if {condition} else {other}")
    else:
        w.lines += [f"if {condition}:", f"    {name} = {one}", "else:", f"    {name} = {other}"]
    w.values.append(Value(name, v.shape))


@step()
def loop(w: Writer) -> None:
    v = w.value(dims=1)
    name = f"v{sum(one.name.startswith('v') for one in w.values)}"
    bound = w.one_of("2", "min(a, 2)", "b % 3")
    w.lines += [f"{name} = {v.name}", f"for i in range({bound}):", f"    {name} = {name} * 0.5 + i"]
    w.values.append(Value(name, v.shape))
