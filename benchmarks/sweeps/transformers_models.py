"""Every architecture of transformers as a small model with inputs: found by trying scales and kinds of inputs in turn.

Nothing is downloaded; weights are random. What was found for a family is data, so that a later run repeats it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.models import import_torchvision

from .inputs import Recipe, recipes
from .small_configs import EXTRA, SCALES, Scale, overrides

_MOST_PARAMETERS = 150_000_000
_SEARCH_S = 2.0  # of the processor


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
    """The first small model of the family that runs; `known` is the "built" entry of an earlier result.

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
    for position, scale in _scales(known):
        try:
            model = _model(config_class, model_class, family, scale)
        except Exception as error:
            problems.append(f"scale {position}: {_line(error)}")
            continue
        ways = recipes(model) if known is None else [Recipe(tuple(map(tuple, known["inputs"])))]  # type: ignore[arg-type]
        for recipe in ways:
            built = Built(model, recipe, position)
            try:
                with torch.no_grad():
                    model(**built.inputs(0))
                return built
            except Exception as error:
                problems.append(f"scale {position}, {'+'.join(n for n, _ in recipe.chosen)}: {_line(error)}")
            if time.process_time() - started > _SEARCH_S:
                raise NotBuilt("; ".join(problems[:3]))
    raise NotBuilt("; ".join(problems[:3]))


def describe(built: Built) -> dict[str, Any]:
    """What a later run needs in order to make the same model and inputs."""
    parameters = sum(parameter.numel() for parameter in built.model.parameters())
    name = type(built.model).__name__
    return {"model": name, "parameters": parameters, "scale": built.scale, "inputs": built.recipe.chosen}


def _scales(known: dict[str, Any] | None) -> Iterator[tuple[int, Scale]]:
    for position, scale in enumerate(SCALES):
        if known is None or known["scale"] == position:
            yield position, scale


def _model(config_class: Any, model_class: Any, family: str, scale: Scale) -> torch.nn.Module:
    defaults = config_class(**EXTRA.get(family, {})).to_dict()
    defaults.pop("model_type", None)
    config = config_class(**{**EXTRA.get(family, {}), **overrides(defaults, scale)})
    if scale.divide < 8:
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


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"
