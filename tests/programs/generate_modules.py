"""Random nn.Modules with state: buffers, counters, caches, flags, submodules in containers, hooks, and graph breaks."""

from __future__ import annotations

import random

PRELUDE = """
import collections
import dataclasses
import functools
import torch
from torch import nn
import stator

@stator.disable
def opaque(log, *values):
    log.append([value.tolist() if isinstance(value, torch.Tensor) else value for value in values])
    return len(log) % 3 + 1

Pair = collections.namedtuple("Pair", "first second")

@dataclasses.dataclass
class Settings:
    scale: float = 0.5
    names: list = dataclasses.field(default_factory=list)

def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2
    return wrapper

class Part(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.register_buffer("mean", torch.zeros(3))
        self.calls = 0
    def forward(self, x, log=None):
        self.calls += 1
        if self.kind == "mean" and self.training:
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        if self.kind == "inplace" and self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
        if self.kind == "noisy" and log is not None:
            opaque(log, self.calls)
        return x * self.weight + self.mean
"""


class Generator:
    """Writes one module class `Net` whose forward takes (x, log, flag)."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def source(self) -> str:
        r = self.random
        kinds = [r.choice(["plain", "mean", "inplace", "noisy"]) for _ in range(3)]
        lines = [
            "class Net(nn.Module):",
            "    shared = 1",
            "    def __init__(self):",
            "        super().__init__()",
            f"        self.parts = nn.ModuleList([Part(kind) for kind in {kinds!r}])",
            '        self.table = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": Part("plain")})',
            "        self.chain = nn.Sequential(Part('plain'), nn.Tanh())",
            "        nn.init.constant_(self.table['a'].weight, 0.1)",
            "        self.settings = Settings()",
            "        self.cache = {}",
            "        self.history = []",
            "        self.steps = 0",
            "        self._hidden = 2",
            "    @property",
            "    def hidden(self):",
            "        return self._hidden",
            "    @hidden.setter",
            "    def hidden(self, value):",
            "        self._hidden = value % 4",
            "    @twice",
            "    def scaled(self, x, *, by=1.0):",
            "        return x * self.settings.scale * by",
            "    @staticmethod",
            "    def shift(x, n): return x + n",
            "    @classmethod",
            "    def of_class(cls, x): return x * cls.shared",
            "    def numbers(self, n):",
            "        for i in range(n):",
            "            self.steps += 1",
            "            yield i",
            "    def forward(self, x, log, flag=False):",
            "        y = x",
            *("        " + line for _ in range(r.randint(5, 9)) for line in self.statement()),
            "        return {'y': y, 'pair': Pair(x + 1, y), 'n': self.steps}",
        ]
        return PRELUDE + "\n".join(lines) + "\n"

    def statement(self) -> list[str]:
        r = self.random
        return r.choice(
            [
                ["for part in self.parts:", "    y = part(y, log)"],
                ["for i, part in enumerate(self.parts):", "    if i % 2 == 0: y = part(y, log=log)"],
                ["for name, part in self.table.items():", "    y = part(y)", "    self.settings.names = [name]"],
                ["y = self.chain(y)"],
                ["y = self.table['a'](y) + self.chain[0](y)"],
                ["self.steps += 1", "y = y + self.steps % 3"],
                ["self.hidden = self.hidden + 1", "y = y * self.hidden"],
                ["if flag: y = y - 1", "else: y = self.scaled(y, by=0.5)"],
                ["y = self.scaled(y)"],
                ["y = self.shift(y, 2) + self.of_class(y)"],
                ["self.history.append(self.steps)", "y = y + len(self.history) % 2"],
                ["if 'k' not in self.cache: self.cache['k'] = y * 0.5", "y = y + self.cache['k']"],
                ["self.cache['last'] = y.sum()", "y = y + self.cache['last'] * 0.01"],
                ["y = y + sum(self.numbers(3))"],
                ["for i in self.numbers(2):", "    y = y + i", "    if self.steps > 6: break"],
                ["opaque(log, self.steps)"],
                ["y = y * opaque(log, y.shape[0])"],
                ["if y.sum() > 0: y = y * 0.5"],
                ["pair = Pair(y, second=y + 1)", "y = pair.first + pair._replace(first=x).first"],
                ["if self.training: self.steps += 10"],
                ["settings = dataclasses.replace(self.settings, scale=0.25)", "y = y * settings.scale"],
                ["self.parts[1].calls = 0", "y = y + self.parts[1].calls"],
                ["try:", "    y = y + self.cache['missing']", "except KeyError:", "    y = y + 1"],
                ["with torch.no_grad(): y = y + self.chain[0].weight.sum()"],
                ["y = torch.stack([y, y * 2]).mean(0)"],
                ["y, z = torch.split(torch.cat([y, x]), [y.shape[0], x.shape[0]])", "y = y + z.sum()"],
                ["y = y + getattr(self, 'absent', 1) + hasattr(self, 'steps')"],
                ["y = functools.reduce(lambda a, b: a + b, [y, x, y])"],
                ["self.latest = y.detach()"],
                ["self.register_buffer('seen', y.detach() * 1) if not hasattr(self, 'seen') else None"],
            ]
        )


def generate_module(seed: int) -> str:
    """The source of a module with the class `Net`."""
    return Generator(seed).source()
