"""How many operators of torch's database may be nothing but fallbacks, and that the page in docs lists them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from operator_coverage import covered, page

pytestmark = pytest.mark.filterwarnings("ignore")  # of deprecated operators and beta features

PAGE = Path(__file__).parents[2] / "docs" / "operator-coverage.md"
MOST_WHOLE = 0.15


def test_at_most_15_percent_of_the_operators_are_whole_fallbacks() -> None:
    found = covered(3)
    whole = [one.name for one in found if one.kind == "whole"]
    assert len(found) > 600
    assert len(whole) <= MOST_WHOLE * len(found), whole


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_page_of_coverage_is_up_to_date() -> None:
    version = torch.__version__.partition("+")[0]
    if f"with torch {version}," not in PAGE.read_text():
        pytest.skip("the page was made with another version of torch, which has other operators")
    assert PAGE.read_text() == page(), "run `make docs`"
