"""copy.copy and copy.deepcopy in captured code: copies equal eager's, in the graph or behind a break."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import stator


class Held:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class CopiesItself:
    """Its copy records how many objects had been copied before."""

    def __init__(self, told: int = -1) -> None:
        self.told = told

    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        return CopiesItself(len(memo))


KEYS = (str, frozenset)


def shown(value: Any, seen: dict[Any, Any] | None = None) -> Any:
    """Describes a value with its parts, and which parts share objects or memory."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, str, float, type(None))):
        return value
    if id(value) in seen:
        return "seen", seen[id(value)][0]
    seen[id(value)] = len(seen), value  # kept, so that no other object gets its id
    parts: Any
    if isinstance(value, torch.Tensor):
        facts = (value.requires_grad, value.is_leaf, value.storage_offset(), value.stride(), value.is_conj())
        memory = value.untyped_storage()
        place = seen.setdefault(("memory", memory.data_ptr()), len(seen))
        hooks = len(value._backward_hooks or {})
        grad = shown(value.grad, seen) if value.is_leaf else None
        parts = (value.tolist(), facts, memory.nbytes(), place, hooks, grad, shown(value.__dict__, seen))
    elif isinstance(value, (list, tuple)):
        parts = [shown(part, seen) for part in value]
    elif isinstance(value, (set, frozenset)):
        parts = sorted(value)
    elif isinstance(value, dict):  # hooks are counted by the whole process
        parts = [(shown(key, seen) if type(key) in KEYS else "", shown(part, seen)) for key, part in value.items()]
    elif isinstance(value, (nn.Module, Held, CopiesItself)):
        parts = shown(value.__dict__, seen)
    else:
        parts = None
    return type(value).__name__, parts


def holds_itself() -> tuple[Any, int]:
    inside: list[Any] = []
    made = (inside, 1)
    inside.append(made)
    return made


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.randn(3))
    made.note = "kept"  # type: ignore[attr-defined]
    return made


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    made.append(made[0])
    made[0].register_buffer("row", made[0].weight.detach()[0])
    made[0].register_forward_hook(lambda *_: None)
    made[0].weight.register_hook(lambda grad: grad * 2)
    made[1].weight.note = 5  # type: ignore[assignment]
    return made


def held() -> Held:
    tensor = torch.randn(3)
    made = Held(one=tensor, part=tensor[1:], items=[tensor])
    tensor.owner = made  # type: ignore[attr-defined]
    return made


def own_method_of_instance() -> Held:
    return Held(__deepcopy__=lambda memo: 5)


def twice(made: Any) -> list[Any]:
    return [made, made]


MAKERS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.randn(4),
    "two": lambda: [torch.randn(4), torch.randn(2)],
    "twice": lambda: twice(torch.randn(4)),
    "parameter": parameter,
    "module": module,
    "object": held,
    "sets": lambda: [*twice({1, 2}), *twice(frozenset({1, 2}))],
    "a tuple that holds itself": holds_itself,
    "tuples twice": lambda: [*twice((1, [2])), [(1, [2])]],
    "keys and lists": lambda: {"a": [1, (2, 3)], "b": twice([])},
    "keys": lambda: {frozenset((1, 2)): [1]},
    "copies itself": CopiesItself,
    "copies itself, in a list": lambda: twice(CopiesItself()),
    "copies itself, in a tuple": lambda: tuple(twice(CopiesItself())),
    "method of the instance": lambda: twice(own_method_of_instance()),
}


def deep(x: torch.Tensor, value: Any) -> Any:
    x = x * 2
    made = copy.deepcopy(value)
    return x + 1, made


def shallow(x: torch.Tensor, value: Any) -> Any:
    x = x * 2
    made = copy.copy(value)
    return x + 1, made


def with_memo(x: torch.Tensor, value: Any) -> Any:
    memo: dict[int, Any] = {}
    made = copy.deepcopy(value, memo)
    return x + 1, made, copy.deepcopy(value, memo) is made


def outcome(function: Callable[..., Any], make: Callable[[], Any]) -> list[Any]:
    torch.manual_seed(3)
    value, x, results = make(), torch.randn(2), []
    for _ in range(2):
        try:
            results.append(shown([*function(x, value), value]))
        except Exception as error:
            results.append((type(error), str(error)))
    return results


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("function", [deep, shallow, with_memo], ids=lambda it: it.__name__)
def test_copies_are_those_of_eager(function: Callable[..., Any], maker: str) -> None:
    stator.reset()
    compiled = stator.compile(function, backend="eager")
    assert outcome(compiled, MAKERS[maker]) == outcome(function, MAKERS[maker])


def looped(x: torch.Tensor, value: Any) -> Any:
    made = []
    for _ in range(3):
        x = x.sin()
        made.append(inner(x, value))
        x = x.cos()
    return x, made


def inner(x: torch.Tensor, value: Any) -> Any:
    return copy.deepcopy(value), x * 2


@pytest.mark.parametrize(
    ("maker", "graphs", "breaks"), [("keys and lists", 1, 0), ("plain", 3, 2), ("parameter", 3, 2), ("module", 3, 2)]
)
def test_graphs_end_at_the_copy_only(maker: str, graphs: int, breaks: int) -> None:
    torch.manual_seed(3)
    value, x = MAKERS[maker](), torch.randn(2)
    explained = stator.explain(looped)(x, value)
    assert (len(explained.graphs), len(explained.break_reasons)) == (graphs, breaks)
    assert shown(explained.result) == shown(looped(x, value))


def trained(step: Callable[..., torch.Tensor]) -> Any:
    """In double precision: the gradient of a bias ahead of a BatchNorm is nothing but rounding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    model[2].weight.register_hook(lambda grad: grad * 2)
    x, losses = torch.randn(5, 3, dtype=torch.float64), []
    for _ in range(3):
        loss, twin = step(model, x)
        loss.backward()
        losses.append((loss.item(), [shown(one.grad) for one in (*model.parameters(), *twin.parameters())]))
        with torch.no_grad():
            for one in model.parameters():
                one -= 0.1 * one.grad
                one.grad = None
    return losses, shown(list(model.buffers()))


def step_with_copy(model: nn.Module, x: torch.Tensor) -> Any:
    twin = copy.deepcopy(model)
    return (model(x) - 2 * twin(x * 2)).square().mean(), twin


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_model_and_its_copy_are_trained(backend: str) -> None:
    expected, buffers = trained(step_with_copy)
    losses, found = trained(stator.compile(step_with_copy, backend=backend))
    torch.testing.assert_close(_numbers([losses, found]), _numbers([expected, buffers]), rtol=1e-11, atol=1e-13)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in _numbers(part)]
    return [float(value)] if isinstance(value, (int, float)) else []


class Renaming:
    """Answers one more name, as the configurations of transformers do."""

    def __init__(self) -> None:
        self.hidden_size = 3

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("hidden_size" if name == "d_model" else name)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_objects_whose_class_computes_attributes_are_copied(copied: Callable[[Any], Any]) -> None:
    configuration = Renaming()

    def program(x: torch.Tensor) -> torch.Tensor:
        own = copied(configuration)
        own.hidden_size = 5
        return x * own.d_model + configuration.d_model

    x = torch.randn(2)
    assert torch.equal(stator.compile(program, backend="eager", fullgraph=True)(x), program(x))
