"""What one attempt of a capture hands to the next: each retry says strictly more, so that the retries end."""

from __future__ import annotations

import pytest

from stator.base.errors import ConcurrentModification, UserPlace, VerificationError
from stator.dynamo.guards.source import LocalSource
from stator.dynamo.ir.capture_assumptions import NO_ASSUMPTIONS, CaptureAssumptions, GraphEnd, Retry
from stator.dynamo.ir.capture_result import BreakReason

REASON = BreakReason("requested", "a test", UserPlace("model.py", 1, "forward"))


def end(step: int) -> GraphEnd:
    return GraphEnd(step, REASON, step // 2)


def test_each_lesson_adds_to_what_was_known() -> None:
    known = CaptureAssumptions(changes={LocalSource("n"): 5})
    lessons = [
        known.not_saying_compiling(end(9)),
        known.ending(end(9)),
        known.ending(end(9)).ending(end(4)),
        known.ending(end(9)).not_nested(),
        known.ending(end(9)).relying_on_changes(),
        known.not_nested().ending(end(9)),
        known.after_failed_guard("x: 1 became 2"),
    ]
    assert all(lesson.adds_to(known) for lesson in lessons)
    assert not any(known.adds_to(lesson) for lesson in (known, *lessons))
    assert lessons[2].adds_to(lessons[1]) and lessons[3].adds_to(lessons[1]) and lessons[5].adds_to(lessons[3])


def test_a_retry_that_learnt_nothing_is_refused() -> None:
    known = NO_ASSUMPTIONS.ending(end(4))
    assert Retry(known.ending(end(3))).after(known).end == end(3)
    for same in (known, known.ending(end(4)), known.ending(end(5)), NO_ASSUMPTIONS):
        with pytest.raises(VerificationError, match="adds no assumption"):
            Retry(same).after(known)


def test_an_end_that_moves_back_again_and_again_is_looked_for_by_halves() -> None:
    known, steps = NO_ASSUMPTIONS.ending(end(1000)), []
    while known.end is not None and known.end.step > 1:
        known = known.ending(end(known.end.step - 1))
        assert known.end is not None
        steps.append(known.end.step)
    assert steps[:7] == [999, 998, 997, 996, 995, 994, 993] and steps[7] == 496 and len(steps) < 20


def test_changes_count_as_one_where_the_graph_must_not_end() -> None:
    known = CaptureAssumptions(changes={LocalSource("n"): 5})
    assert known.seen_changes() == {LocalSource("n"): 5}
    assert known.relying_on_changes().seen_changes() == {LocalSource("n"): 1}


def test_guards_that_fail_in_one_way_are_a_defect_and_others_another_thread_s_work() -> None:
    once = NO_ASSUMPTIONS.ending(end(4)).after_failed_guard("a")
    assert once.end is None, "with other values the graph may end elsewhere"
    with pytest.raises(VerificationError, match="the values it was made from: a"):
        once.after_failed_guard("a").after_failed_guard("a")
    with pytest.raises(ConcurrentModification, match="the values it was made from: c"):
        once.after_failed_guard("b").after_failed_guard("c")
