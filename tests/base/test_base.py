"""Options, errors, registries, log artifacts and dumps."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from stator.base import counters, dumps, logs
from stator.base.config import Options, make_options
from stator.base.errors import CompileError, Unsupported, UsageError, UserPlace
from stator.base.registry import Registry


def test_options_take_mode_and_options() -> None:
    assert make_options("max-autotune", {"recompile_limit": 3}) == Options(mode="max-autotune", recompile_limit=3)


def test_unknown_option_lists_the_known_and_guesses() -> None:
    with pytest.raises(
        UsageError, match=r"'recompile_limits' \(did you mean 'recompile_limit'\?\); known options: .*verify"
    ):
        make_options(None, {"recompile_limits": 3})


def test_unknown_mode_lists_the_known() -> None:
    with pytest.raises(UsageError, match="known modes: default, reduce-overhead, max-autotune, "):
        make_options("fast", None)


@pytest.mark.parametrize("value", [1, None])
def test_options_that_are_bools_take_nothing_else(value: object) -> None:
    with pytest.raises(UsageError, match="must be bool"):
        make_options(None, {"exact_rounding": value})


def test_rounding_is_free_by_default() -> None:
    assert make_options(None, None).exact_rounding is False


def test_option_of_wrong_type_is_refused() -> None:
    with pytest.raises(UsageError, match="must be bool, not int"):
        make_options(None, {"fusion": 1})


def test_a_whole_number_is_taken_for_a_fraction() -> None:
    assert make_options(None, {"memory_budget": 0}).memory_budget == 0


def test_a_memory_budget_outside_of_its_range_is_refused() -> None:
    with pytest.raises(UsageError, match=r"between 0 and 1, not 1\.5"):
        make_options(None, {"memory_budget": 1.5})


def test_registry_refuses_a_second_handler() -> None:
    registry: Registry[str, object] = Registry("opcode")
    registry.register("A", "B")(len)
    with pytest.raises(ValueError, match="duplicate opcode 'A'"):
        registry.register("A")(repr)
    assert registry["B"] is len and registry.known() == ["A", "B"]


def test_errors_name_place_and_hint() -> None:
    place = UserPlace("model.py", 12, "forward")
    text = str(Unsupported("call-builtin", "print was called", place=place, hint="move it out"))
    assert "call-builtin" in text and 'File "model.py", line 12, in forward' in text and "Hint: move it out" in text
    assert "inductor could not compile" in str(CompileError("inductor", "no such dtype"))


def test_a_place_is_only_added_once() -> None:
    first, second = UserPlace("a.py", 1, "f"), UserPlace("b.py", 2, "g")
    assert Unsupported("kind", "reason").at(first).at(second).place == first


def test_unknown_log_artifact_lists_the_known() -> None:
    with pytest.raises(UsageError, match="known: all, autotune, bytecode, code"):
        logs.enable("grpah")


def test_log_artifacts_are_off_until_enabled(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_enabled", set())
    logger = logging.getLogger("stator")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    logs.log("code", "quiet")
    logs.enable("code")
    caplog.set_level(logging.INFO, logger="stator")
    logs.log("code", "loud %d", 1)
    assert [record.getMessage() for record in caplog.records] == ["loud 1"]


def test_warn_once_warns_once() -> None:
    logs.forget_warnings()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        logs.warn_once("key", "text")
        logs.warn_once("key", "text")
    assert [str(w.message) for w in seen] == ["text"]


def test_dumps_are_written_under_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_DUMP", str(tmp_path))
    with dumps.compilation("Model.forward"):
        dumps.write("10_graph.py", lambda: "text")
    dumps.write("20_lost.py", "outside of a compilation")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in files] == ["10_graph.py"] and files[0].read_text() == "text"
    assert files[0].parent.name.endswith("_Model.forward")


def test_stage_times_add_up() -> None:
    counters.clear()
    for _ in range(2):
        with counters.timed("lower"):
            pass
    counters.count("kernels", 3)
    assert counters.seconds["lower"] > 0 and counters.counts["kernels"] == 3
