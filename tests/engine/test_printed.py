"""What notebooks show of results: tables and figures without scripts, in which every name is a text."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import numpy as np
import pytest

import mocoda
from mocoda.agents import Evaluation

NAMES = ("<b>x</b>", "[/dim]y", "[red]", "\"&'")  # HTML, and rich's own markup
RANDOM = np.random.default_rng(0)
STATE, ACTION = RANDOM.random((300, 2)), RANDOM.random((300, 2))
DATA = mocoda.Transitions(STATE, ACTION, STATE + 0.1 * ACTION, columns=NAMES)
GRAPH = mocoda.LocalGraph(
    {NAMES[0]: 0, NAMES[1]: 1}, {NAMES[2]: 0, NAMES[3]: 1}, {NAMES[0]: [NAMES[0], NAMES[2]], NAMES[1]: NAMES[1:]}
)
RESULTS: dict[str, Any] = {
    "table": lambda: DATA,
    "graph": lambda: GRAPH,
    "inspection": lambda: mocoda.inspect(DATA),
    "audit": lambda: mocoda.audit(DATA, lambda rows: rows[:, :2] + 0.1 * rows[:, 2:], GRAPH),
    "evaluation": lambda: Evaluation({name: {(NAMES[0], 0): 1.0} for name in ("steps", "success", "return")}, 1),
    "step check": lambda: mocoda.check_step(DATA, lambda rows: rows[:, :2], GRAPH),
}


@pytest.mark.parametrize("result", RESULTS)
def test_names_are_shown_as_they_are(result: str) -> None:
    found = RESULTS[result]()
    html = found._repr_html_()
    tags = {*re.findall(r"</?(\w+)", html)}
    assert tags <= {"pre", "span", "img"}
    text = unescape(re.sub(r"<[^>]*>", "", html)) if "img" not in tags else unescape(re.findall('alt="(.*?)"', html)[0])
    assert NAMES[0] in text
    if result in ("table", "graph", "inspection", "audit"):
        assert all(name in text for name in NAMES[:2])
    if result not in ("table", "graph"):
        assert NAMES[0] in str(found)


def test_a_wide_table_shows_its_first_rows_and_columns() -> None:
    wide = mocoda.Transitions(np.ones((9, 15)), np.ones((9, 15)), np.ones((9, 15)))
    text = re.sub(r"<[^>]*>", "", wide._repr_html_())
    assert "20 of 46 columns, 5 of 9 rows" in text and "state14" in text and "next_state" not in text.split("Trans")[0]
