"""Steps of random programs that arrange elements: views, slices, several tensors in one, look-ups by index."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.programs.shapes.writer import ONE, Size, Skip, Steps, Writer, product, sliced_part

step = Steps()

# ---- views ----


@step(2)
def permuted(w: Writer) -> None:
    v = w.value(dims=2)
    order = w.draw(st.permutations(range(len(v.shape))))
    w.add(f"{v.name}.permute({', '.join(map(str, order))})", tuple(v.shape[at] for at in order))


@step(2)
def flattened(w: Writer) -> None:
    v = w.value(dims=2)
    at = w.draw(st.integers(0, len(v.shape) - 2))
    merged = product(v.shape[at : at + 2])
    shape = (*v.shape[:at], merged, *v.shape[at + 2 :])
    sizes = [w.size(size) if other != at or w.draw(st.booleans()) else "-1" for other, size in enumerate(shape)]
    form = w.one_of(f"{v.name}.flatten({at}, {at + 1})", f"{v.name}.reshape({', '.join(sizes)})")
    w.add(form, shape)


@step(2)
def reshaped(w: Writer) -> None:
    """The elements in other rows; a view wherever eager makes one."""
    v = w.value(dims=1)
    sizes = list(v.shape)
    w.draw(st.randoms(use_true_random=False)).shuffle(sizes)
    if w.draw(st.booleans()):
        sizes.insert(w.draw(st.integers(0, len(sizes))), ONE)
    free = w.draw(st.integers(-1, len(sizes) - 1))
    text = ", ".join("-1" if at == free else w.size(size) for at, size in enumerate(sizes))
    w.add(f"{v.name}.{w.one_of('reshape', 'reshape', 'contiguous().view')}({text})", tuple(sizes))


@step()
def unflattened(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    size = v.shape[at]
    factors = [
        ("a", f"({size.text}) // a"),
        ("b", f"({size.text}) // b"),
        ("2", f"({size.text}) // 2"),
        ("1", size.text),
    ]
    fitting = [pair for pair in factors if product((Size(pair[0]), Size(pair[1]))) == size]
    first, second = w.one_of(*fitting)
    if first == "2":
        raise Skip
    inferred = w.one_of(second, "-1")
    w.add(
        f"{v.name}.unflatten({d}, ({first}, {inferred}))",
        (*v.shape[:at], Size(first), Size(second), *v.shape[at + 1 :]),
    )


@step()
def with_ones(w: Writer) -> None:
    v = w.value(where=lambda one: len(one.shape) < 4)
    at = w.draw(st.integers(0, len(v.shape)))
    w.add(f"{v.name}.unsqueeze({at})", (*v.shape[:at], ONE, *v.shape[at:]))


@step()
def without_ones(w: Writer) -> None:
    """Of a dimension that is 1 in each call, or in some calls only."""
    v = w.value(dims=1)
    at, d = w.dim(v)
    if not v.shape[at].is_one and w.draw(st.integers(0, 3)):
        raise Skip
    w.add(f"{v.name}.squeeze({d})", v.shape[:at] + v.shape[at + 1 :] if v.shape[at].is_one else v.shape)


@step()
def expanded(w: Writer) -> None:
    v = w.value(where=lambda one: len(one.shape) < 4)
    size = w.number()
    shape = (size, *(w.number() if one.is_one else one for one in v.shape))
    w.add(f"{v.name}.expand({', '.join(map(w.size, shape))})", shape)


@step(3)
def sliced(w: Writer) -> None:
    v = w.value(w.one_of("float", "float", "int"), 1)
    text, shape = sliced_part(w, v)
    w.add(f"{v.name}[{text}]", shape, v.kind)


@step()
def selected(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    where = w.one_of("0", "-1", "1", f"{w.size(v.shape[at])} // 2", f"{w.size(v.shape[at])} - 1")
    w.add(f"{v.name}.select({d}, {where})", v.shape[:at] + v.shape[at + 1 :])


@step()
def diagonals(w: Writer) -> None:
    v = w.value(dims=2)
    form = w.one_of("torch.tril({v})", "torch.triu({v}, 1)", "{v}.diagonal(0, -2, -1)", "{v}.transpose(-1, -2).mT")
    shape = v.shape
    if "diagonal" in form:
        shape = (*v.shape[:-2], Size(f"min({v.shape[-1].text}, {v.shape[-2].text})"))
    w.add(form.format(v=v.name), shape)


@step()
def windows(w: Writer) -> None:
    v = w.value(dims=1, where=lambda one: len(one.shape) < 4)
    at, d = w.dim(v)
    length = w.one_of(1, 2)
    shape = (*v.shape[:at], Size(f"max(({v.shape[at].text}) - {length} + 1, 0)"), *v.shape[at + 1 :], Size(length))
    w.add(f"{v.name}.unfold({d}, {length}, 1)", shape)


# ---- several tensors ----


@step(2)
def concatenated(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    rest = lambda shape: shape[:at] + shape[at + 1 :]  # noqa: E731
    fits = lambda one: len(one.shape) == len(v.shape) and rest(one.shape) == rest(v.shape)  # noqa: E731
    parts = [v, *(w.value(where=fits) for _ in range(w.draw(st.integers(1, 2))))]
    size = Size(" + ".join(f"({one.shape[at].text})" for one in parts))
    text = f"torch.cat(({', '.join(one.name for one in parts)}), {d})"
    w.add(text, (*v.shape[:at], size, *v.shape[at + 1 :]))


@step()
def stacked(w: Writer) -> None:
    v = w.value(where=lambda one: len(one.shape) < 4)
    o = w.value(where=lambda one: one.shape == v.shape)
    at = w.draw(st.integers(0, len(v.shape)))
    w.add(f"torch.stack(({v.name}, {o.name}, {v.name}), {at})", (*v.shape[:at], Size(3), *v.shape[at:]))


@step()
def split(w: Writer) -> None:
    v = w.value(dims=1)
    at, d = w.dim(v)
    size = v.shape[at]
    half = Size(f"({size.text} + 1) // 2")
    written = w.size(size)
    form = w.one_of("chunk", "split", "sizes", "tensor_split")
    if form == "chunk":
        text = f"{v.name}.chunk(2, {d})[0]"
    elif form == "split":
        text = f"{v.name}.split(max(({written} + 1) // 2, 1), {d})[0]"
    elif form == "sizes":
        text = f"torch.split({v.name}, [({written} + 1) // 2, {written} - ({written} + 1) // 2], {d})[0]"
    else:
        text = f"{v.name}.tensor_split(2, {d})[0]"
    w.add(text, (*v.shape[:at], half, *v.shape[at + 1 :]))


@step(2)
def products(w: Writer) -> None:
    v = w.value(dims=2)
    right = lambda one: len(one.shape) == 2 and one.shape[0] == v.shape[-1]  # noqa: E731
    same = lambda one: one.shape[:-2] == v.shape[:-2] and len(one.shape) > 1 and one.shape[-1] == v.shape[-1]  # noqa: E731
    if w.draw(st.booleans()):
        o = w.value(where=right)
        w.add(f"({v.name} @ {o.name}) * 0.25", (*v.shape[:-1], o.shape[1]))
    else:
        o = w.value(where=same)
        form = w.one_of(
            f"{v.name} @ {o.name}.mT * 0.25", f"torch.einsum('...ij,...kj->...ik', {v.name}, {o.name}) * 0.25"
        )
        w.add(form, (*v.shape[:-1], o.shape[-2]))


@step()
def attention(w: Writer) -> None:
    v = w.value(dims=3)
    causal = w.draw(st.booleans())
    w.add(f"F.scaled_dot_product_attention({v.name}, {v.name}, {v.name}, is_causal={causal})", v.shape)


@step()
def outer(w: Writer) -> None:
    v, o = (w.value(where=lambda one: len(one.shape) == 1) for _ in range(2))
    w.add(f"torch.outer({v.name}, {o.name})", v.shape + o.shape)


# ---- indexing ----


@step(2)
def looked_up(w: Writer) -> None:
    v = w.value(dims=1)
    index = w.value("int", 1, lambda one: len(one.shape) == 1)
    at, d = w.dim(v)
    inside = f"{index.name} % max({w.size(v.shape[at])}, 1)"
    shape = (*v.shape[:at], index.shape[0], *v.shape[at + 1 :])
    form = w.one_of("index_select({v}, {d}, {i})", "v[]", "roll")
    if form == "v[]":
        w.add(f"{v.name}[{':, ' * at}{inside}]", shape)
    elif form == "roll":
        w.add(f"{v.name}.roll({w.size(w.number())}, {d})", v.shape)
    else:
        w.add(f"torch.index_select({v.name}, {d}, {inside})", shape)


@step()
def gathered(w: Writer) -> None:
    v = w.value(dims=1)
    _, d = w.dim(v)
    w.add(f"{v.name}.gather({d}, {v.name}.argsort(dim={d}, stable=True))", v.shape)


@step()
def scattered(w: Writer) -> None:
    v = w.value(dims=1, where=lambda one: one.shape[0] == Size("a"))
    rows = w.number()
    shape = (rows, *v.shape[1:])
    form = w.one_of("index_add(0, index % max({r}, 1), {v})", "index_put((index % max({r}, 1),), {v}, True)")
    form = "{v}.new_zeros({s})." + form
    w.add(form.format(v=v.name, s=", ".join(map(w.size, shape)), r=w.size(rows)), shape)
