"""The sweeps' own parts: small configurations, ways to call a model, the comparison with eager, one family each."""

from __future__ import annotations

import collections
import json
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from benchmarks.sweeps import measure, timm_models, transformers_models, wide_models
from benchmarks.sweeps.causes import CAUSES
from benchmarks.sweeps.forked import Job
from benchmarks.sweeps.inputs import recipes, with_placeholders
from benchmarks.sweeps.run import RESULTS, SLOWEST, SUITES, fails_in_eager, grade, run, runs_equal
from benchmarks.sweeps.small_configs import Scale, overrides
from benchmarks.sweeps.table import SPEEDS


def test_widths_keep_their_ratios_and_lists_of_layers_keep_each_kind() -> None:
    defaults = {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "head_dim": 128,
        "num_hidden_layers": 4,
        "layer_types": ["near", "near", "near", "far"],
        "vocab_size": 50000,
        "eos_token_id": [40000, 3],
        "text_config": {"model_type": "inner", "d_model": 64, "layer_norm_eps": 1e-5},
    }
    assert overrides(defaults, Scale(8, 2)) == {
        "hidden_size": 512,
        "head_dim": 16,
        "num_hidden_layers": 3,
        "layer_types": ["near", "near", "far"],
        "vocab_size": 1024,
        "eos_token_id": [1023, 3],
        "text_config": {"model_type": "inner", "d_model": 8, "layer_norm_eps": 1e-5},  # whole: defaults are the outer's
    }


def test_fewer_heads_leave_the_width_of_a_head() -> None:
    defaults = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
    changed = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1}
    assert overrides(defaults, Scale(8, 2, fewer_heads=True)) == changed


def test_fields_of_single_layers_follow_their_layer() -> None:
    kinds = ["near", "near", "near", "far", "near", "far"]
    defaults = {
        "num_hidden_layers": 6,
        "layer_types": kinds,
        "per_layer_config": {"03": {"head_dim": 512}, "05": {"head_dim": 256}},
    }
    assert overrides(defaults, Scale(8, 2)) == {
        "num_hidden_layers": 3,
        "layer_types": ["near", "near", "far"],
        "per_layer_config": {2: {"head_dim": 64}},
    }


class TwoKinds(torch.nn.Module):
    main_input_name = "pixel_values"

    def forward(self, input_ids=None, attention_mask=None, pixel_values=None): ...


def test_the_fullest_call_comes_first_then_the_main_input() -> None:
    ways = [tuple(name for name, _, _ in way.chosen) for group in recipes(TwoKinds()) for way in group]
    assert ways[0] == ("input_ids", "attention_mask", "pixel_values")
    alone = [way for way in ways if len(way) == 1]
    assert alone[0] == ("pixel_values",)
    assert not any("attention_mask" in way and "input_ids" not in way for way in ways)


class Features(TwoKinds):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=50, image_token_id=7, image_size=8)

    def get_image_features(self, pixel_values):
        return pixel_values.new_zeros(2, 5, 3)


def test_ids_hold_as_many_placeholders_as_there_are_features() -> None:
    model = Features()
    recipe = with_placeholders(model, next(next(recipes(model))))
    assert recipe.placeholders == (("image", 5),)
    inputs = recipe.make(model.config)
    assert (inputs["input_ids"] == 7).sum(1).tolist() == [5, 5]
    assert inputs["attention_mask"].shape == inputs["input_ids"].shape == (2, 21)


class Slow:
    """Stands for a suite's module: one family that is never built, and one whose first compiler never ends."""

    @staticmethod
    def build(family: str, known: object) -> object:
        while family == "unbuilt":
            pass
        return family

    describe = staticmethod(lambda built: {"model": built})


def test_what_takes_too_long_is_a_result_and_the_next_column_is_measured(monkeypatch) -> None:
    def endless(built: object) -> None:
        while True:
            pass

    monkeypatch.setitem(sys.modules, "benchmarks.sweeps.slow_models", Slow)
    monkeypatch.setattr(measure, "measure_stator", lambda built: {"equal": "bitwise"})
    monkeypatch.setattr(measure, "measure_peer", endless)
    seconds = {"build": 1, "stator": 5, "peer": 1}
    jobs = [Job("slow", family, ("peer", "stator"), None, seconds) for family in ("built", "unbuilt")]
    rows = {job.family: row for job, row in run(jobs, 2, time.monotonic() + 60)}
    assert rows["unbuilt"] == {"problem": "took more than 1 s"}
    peer = {"error": "took more than 1 s"}
    assert rows["built"] == {"built": {"model": "built"}, "peer": peer, "stator": {"equal": "bitwise"}}
    rows = {job.family: row for job, row in run(jobs[1:], 1, time.monotonic() + 0.2)}
    assert rows == {"unbuilt": {}}  # no time left: no result


class Cache:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.layers = [tensor]


def test_differences_anywhere_in_an_output_are_seen() -> None:
    def output(value: float, index: int = 1) -> dict:
        return {"plain": (torch.ones(3), index), "cache": Cache(torch.full((2,), value))}

    assert measure.difference(output(2.0), output(2.0)) == 0
    assert measure.difference(output(3.0), output(2.0)) == 0.5
    assert measure.difference(output(2.0, index=2), output(2.0)) == float("inf")
    assert measure.difference({"a": torch.ones(3)}, {"a": torch.ones(4)}) == float("inf")
    assert measure.difference({"a": torch.tensor([float("nan")])}, {"a": torch.ones(1)}) == float("inf")
    assert measure.difference({}, {"a": torch.ones(1)}) == float("inf")


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()


def test_a_break_is_counted_with_its_reason_and_place() -> None:
    built = collections.namedtuple("built", "model inputs")(Model(), lambda seed: {"x": torch.full((3,), float(seed))})
    row = measure.measure_stator(built)
    assert (row["equal"], row["recompiled"]) == ("bitwise", 0) and row["breaks"] > 0  # once for each frame it ends
    reasons = list(row["reasons"])
    assert len(reasons) == 1 and reasons[0].startswith("requested:") and "test_sweeps.py" in reasons[0], reasons


class Trained(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layers(x), "counted": self.layers[1].num_batches_tracked}


def test_steps_of_training_are_compared_and_leave_the_buffers() -> None:
    torch.manual_seed(0)
    model = Trained().eval()
    built = collections.namedtuple("built", "model inputs")(model, lambda seed: {"x": torch.full((5, 3), float(seed))})
    row = measure.measure_train(built)
    assert (row["equal"], row["graphs"], row["breaks"], row["recompiled"]) == ("bitwise", 1, 0, 0)
    assert model.layers[1].num_batches_tracked == 0 and torch.equal(model.layers[1].running_mean, torch.zeros(4))


def test_differences_of_gradients_are_seen_beyond_the_rounding_of_the_largest() -> None:
    def step(first: float, second: float | None, count: int = 1) -> dict:
        gradients = {"a": torch.tensor([first, 1.0]), "b": None if second is None else torch.tensor([second])}
        return {"outputs": [("x", torch.ones(1))], "gradients": gradients, "buffers": {"n": torch.tensor(count)}}

    assert measure._step_difference(step(1.0, 1e-9), step(1.0, -1e-9)) < measure.TOLERANCE
    assert measure._step_difference(step(1.0, 1e-3), step(1.0, 2e-3)) > measure.TOLERANCE
    assert measure._step_difference(step(0.5, 0.0), step(1.0, 0.0)) == 0.5
    assert measure._step_difference(step(1.0, None), step(1.0, 0.0)) == float("inf")
    assert measure._step_difference(step(1.0, 0.0, 2), step(1.0, 0.0)) == float("inf")


@pytest.mark.parametrize(
    ("models", "family", "name"),
    [(transformers_models, "bert", "BertModel"), (timm_models, "resnet", None)],
)
def test_one_family(models, family: str, name: str | None) -> None:
    built = models.build(family)
    assert name is None or type(built.model).__name__ == name
    row = measure.measure_stator(built)
    assert row["equal"] == "bitwise" and row["graphs"] == 1 and not row["breaks"] and not row["recompiled"]
    assert grade(row) == 4


@pytest.mark.parametrize("family", ["two_towers", "dqn"])
def test_a_model_and_a_loop_of_the_wide_suite_are_equal_and_timed(family: str) -> None:
    row = measure.measure_speed_train(wide_models.build(family))
    assert runs_equal(row) and not row["breaks"] and row["speed"] > 0


def test_the_wide_suite_is_wide_and_equal_to_eager() -> None:
    rows = json.loads((RESULTS / "wide.json").read_text())["families"]
    assert len(rows) >= 60 and {*wide_models.families()} == {*rows} and all("built" in row for row in rows.values())
    entries = [(name, row[column]) for name, row in rows.items() for column in wide_models.columns(name)]
    assert all(runs_equal(entry) for _, entry in entries)


@pytest.mark.parametrize("suite", SUITES)
def test_what_is_kept_as_slower_than_eager_has_a_cause(suite: str) -> None:
    rows = json.loads((RESULTS / f"{suite}.json").read_text())["families"]
    slow = {name for name, row in rows.items() for c in SPEEDS if row.get(c, {}).get("speed", 1) < SLOWEST}
    assert slow <= CAUSES[suite].keys()


def kept_entries(suite: str, column: str = "stator") -> list[dict]:
    rows = json.loads((RESULTS / f"{suite}.json").read_text())["families"].values()
    entries = [row[column] for row in rows if "built" in row and column in row]
    return [entry for entry in entries if not fails_in_eager(entry)]


@pytest.mark.parametrize(("suite", "families"), [("transformers", 150), ("timm", 80)])
def test_the_kept_results_are_many_and_equal_to_eager(suite: str, families: int) -> None:
    entries = kept_entries(suite)
    assert len(entries) >= families
    assert sum("error" not in entry and runs_equal(entry) for entry in entries) >= 0.99 * len(entries)


@pytest.mark.parametrize("suite", ["transformers", "timm"])
def test_the_kept_results_have_no_breaks_in_95_of_100_families(suite: str) -> None:
    entries = kept_entries(suite)
    assert sum("error" not in entry and not entry["breaks"] for entry in entries) >= 0.95 * len(entries)


@pytest.mark.parametrize(("suite", "families"), [("transformers", 150), ("timm", 60)])
def test_the_kept_steps_of_training_are_equal_to_eager(suite: str, families: int) -> None:
    entries = kept_entries(suite, "train")
    assert len(entries) >= families
    assert sum("error" not in entry and runs_equal(entry) for entry in entries) >= 0.99 * len(entries)


def test_what_eager_does_not_run_counts_for_nobody() -> None:
    """Of the training column: the model runs in eval mode, and raises in training mode."""

    def model(**inputs: torch.Tensor) -> torch.Tensor:
        raise ValueError("not in training mode")

    built = SimpleNamespace(model=model, inputs=lambda seed: {"x": torch.ones(2)})
    with pytest.raises(measure.EagerFails, match="not in training mode"):
        measure.measure_stator(built)
    assert fails_in_eager({"error": "EagerFails: ValueError: not in training mode @ measure.py:1"})
