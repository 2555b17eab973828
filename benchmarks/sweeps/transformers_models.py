"""Every architecture of transformers as a small model with inputs: found by trying scales and kinds of inputs in turn.

Nothing is downloaded; weights are random. What was found for a family is data, so that a later run repeats it.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import import_torchvision

from .inputs import USUAL, Recipe, recipes, with_placeholders
from .small_configs import EXTRA, SCALES, SEARCH, Scale, overrides

_MOST_PARAMETERS = 250_000_000
_SEARCH_S, _SEARCH_OF_A_SCALE_S = 20.0, 4.0  # of the processor
_SAME_PROBLEM = 6


class NotBuilt(Exception):
    """No small model of this family was found that eager PyTorch runs; the text says what the first tries met."""


@dataclass(slots=True)
class Built:
    """One family's model in eval mode, and inputs of the same shapes with other values for each seed."""

    model: torch.nn.Module
    recipe: Recipe
    scale: int  # position in SCALES

    def inputs(self, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        return self.recipe.make(self.model.config)

    def other_sizes(self) -> Iterator[list[dict[str, Any]]]:
        """Calls with other batches, at first also with other lengths of text and sound, which some models refuse."""
        for sizes in (((3, 20), (5, 27)), ((3, USUAL[1]), (5, USUAL[1]))):
            torch.manual_seed(1)
            yield [self.recipe.make(self.model.config, size) for size in sizes]


def families() -> dict[str, str]:
    """Model type -> name of its model class: the base model where there is one. A class is listed once."""
    import_torchvision()
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    mappings = [v for k, v in sorted(vars(modeling_auto).items()) if re.fullmatch(r"MODEL_\w*MAPPING_NAMES", k)]
    mappings.insert(0, modeling_auto.MODEL_MAPPING_NAMES)
    found: dict[str, str] = {}
    for model_type in CONFIG_MAPPING_NAMES:
        name = next((mapping[model_type] for mapping in mappings if model_type in mapping), None)
        name = name[0] if isinstance(name, tuple | list) else name
        if isinstance(name, str) and name not in found.values():
            found[model_type] = name
    return found


def build(family: str, known: dict[str, Any] | None = None) -> Built:
    """The first small model of the family that runs; `known`, the "built" entry of an earlier result, is tried first.

    Raises NotBuilt.
    """
    import_torchvision()
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    started = time.process_time()
    problems: list[str] = []
    try:
        config_class = CONFIG_MAPPING[family]
        model_class = getattr(transformers, families()[family])
    except Exception as error:
        raise NotBuilt(_line(error)) from error
    for position, recipe_known in _places(known):
        try:
            model = _model(config_class, model_class, family, SCALES[position])
        except Exception as error:
            problems.append(f"scale {position}: {_line(error)}")
            continue
        ways = recipes(model) if recipe_known is None else iter([iter([recipe_known])])
        if recipe := _running(model, ways, f"scale {position}", problems):
            return Built(model, recipe, position)
        if time.process_time() - started > _SEARCH_S:
            break
    raise NotBuilt(_first(problems))


def _running(
    model: torch.nn.Module, ways: Iterator[Iterator[Recipe]], where: str, problems: list[str]
) -> Recipe | None:
    """The first way to call the model that runs. Ways of one group that all meet one problem are given up soon."""
    started = time.process_time()
    for group in ways:
        met: Counter[str] = Counter()
        for recipe in group:
            try:
                with torch.no_grad():
                    full = with_placeholders(model, recipe)
                    torch.manual_seed(0)
                    model(**full.make(model.config))
                return full
            except Exception as error:
                problem = _line(error)
            problems.append(f"{where}, {recipe.names()}: {problem}")
            met[problem] += 1
            if time.process_time() - started > _SEARCH_OF_A_SCALE_S:
                return None
            if len(met) == 1 and met[problem] == _SAME_PROBLEM:
                break
    return None


def describe(built: Built) -> dict[str, Any]:
    """What a later run needs in order to make the same model and inputs."""
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    name = type(built.model).__name__
    recipe = {"inputs": built.recipe.chosen, "placeholders": built.recipe.placeholders}
    return {"model": name, "parameters": parameters, "scale": built.scale, **recipe}


def _places(known: dict[str, Any] | None) -> Iterator[tuple[int, Recipe | None]]:
    """Positions in SCALES to try, with the only way to call the model where it is known."""
    if known is not None and "placeholders" in known:
        yield known["scale"], Recipe(tuple(map(tuple, known["inputs"])), tuple(map(tuple, known["placeholders"])))
    for position in SEARCH:
        yield position, None


def _model(config_class: Any, model_class: Any, family: str, scale: Scale) -> torch.nn.Module:
    defaults = config_class(**EXTRA.get(family, {})).to_dict()
    defaults.pop("model_type", None)
    config = config_class(**{**EXTRA.get(family, {}), **overrides(defaults, scale)})
    if scale.divide < 8 or scale.layers > 2:
        _check_size(model_class, config)
    torch.manual_seed(0)
    return model_class(config).eval()


def _check_size(model_class: Any, config: Any) -> None:
    try:
        with torch.device("meta"):
            count = sum(parameter.numel() for parameter in model_class(config).parameters())
    except Exception:
        return  # not every model can be made without data; the memory limit of the process is the other guard
    if count > _MOST_PARAMETERS:
        raise NotBuilt(f"{count:,} parameters")


def _first(problems: list[str]) -> str:
    """The first of each kind of problem, whatever the scale."""
    kinds: dict[str, str] = {}
    for problem in problems:
        kinds.setdefault(problem.split(": ", 1)[-1][:60], problem)
    return "; ".join(list(kinds.values())[:5])


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
