"""The numbers and charts of the page: edges and ranges of whole tables, episodes and curves.

Charts are specifications of Vega-Altair, which the browser fills with rows. A title that begins with @ depends on the
reader's choice: "@x" is the name of the column on the x axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mocoda.data.transitions import Transitions
from mocoda.graph.local_graph import LocalGraph

BINS = 30
MAX_QUANTILE_ROWS = 1_000_000  # torch takes no quantiles of many more
KINDS = ("recorded", "counterfactual")
Tables = Sequence[Transitions]  # recorded rows, and generated ones if there are any


def edges(tables: Tables, graph: LocalGraph) -> list[dict[str, Any]]:
    """Every edge of the sparsest graph or of any row, with the share of the rows of each kind that have it."""
    shares = [graph.shares(table.rows) for table in tables]
    return [
        {
            "parent": parent,
            "child": child,
            "places": (p, c),
            "sparsest": bool(graph.sparsest[p, c]),
            "shares": [float(share[p, c]) for share in shares],
        }
        for p, parent in enumerate(graph.parents)
        for c, child in enumerate(graph.children)
        if bool(graph.sparsest[p, c]) or any(float(share[p, c]) > 0 for share in shares)
    ]


def ranges(tables: Tables) -> list[dict[str, Any]]:
    """Statistics of each column of state and action, by kind of rows, with a histogram over the range of all rows."""
    states = tables[0].state.shape[1]
    columns = []
    for place, name in enumerate(tables[0].columns):
        values = [table.rows[:, place] for table in tables]
        low, high = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
        known = values[0].aminmax()
        kinds = []
        for kind, own in zip(KINDS, values, strict=False):
            exact = own.double()
            kinds.append(
                {
                    "kind": kind,
                    "min": float(own.min()),
                    "mean": float(exact.mean()),
                    "max": float(own.max()),
                    "std": float(exact.std(correction=0)),
                    "inner": quantiles(own, 0.05, 0.95).tolist(),
                    "outside": float(((own < known.min) | (own > known.max)).double().mean()),
                    "bars": _histogram(own, low, high),
                }
            )
        part = "state" if place < states else "action"
        columns.append({"name": name, "part": part, "low": low, "high": high, "kinds": kinds})
    return columns


def quantiles(values: Tensor, *shares: float) -> Tensor:
    """Quantiles of each column of values (N, ...): (shares, ...)."""
    some = values[:: -(-len(values) // MAX_QUANTILE_ROWS)]
    return torch.quantile(some, some.new_tensor(shares), dim=0)


def _histogram(values: Tensor, low: float, high: float) -> list[float]:
    """The shares of the values in BINS bins between two numbers; the outermost count what lies beyond."""
    width = high - low if high > low else 1.0
    place = ((values.double() - low) / width * BINS).long().clamp_(0, BINS - 1)
    return [count / len(values) for count in place.bincount(minlength=BINS).tolist()]


# --- specifications


def charts(columns: int, series: Sequence[str] = ()) -> dict[str, Any]:
    """Vega-Lite specifications by name, for a table of so many columns and for training curves of these names."""
    import altair as alt

    table = alt.Chart(alt.NamedData(name="table"))
    kinds, free = alt.Scale(domain=list(KINDS)), alt.Scale(zero=False)
    kind = alt.Color("kind:N", title=None, scale=kinds, legend=alt.Legend(orient="top", symbolOpacity=1))
    names = alt.Y("column:N", title=None, sort=None, axis=alt.Axis(labelLimit=140))
    lines = table.encode(names, alt.YOffset("kind:N", sort=list(KINDS)), kind)
    span = lines.mark_rule().encode(alt.X("low:Q", title="@x"), alt.X2("high:Q"))
    inner = lines.mark_bar(height=5).encode(alt.X("inner_low:Q"), alt.X2("inner_high:Q"))
    outline = table.encode(
        alt.X("x:Q", title="@x", scale=alt.Scale(zero=False, nice=False)),
        alt.Y("share:Q", title="@y", stack=False),
        kind,
    )
    dash = alt.StrokeDash("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=[[1, 0], [5, 3]]))
    histogram = outline.mark_line(interpolate="step-after").encode(dash)
    histogram += outline.mark_area(interpolate="step-after", opacity=0.18)
    above = alt.Legend(orient="top")
    steps = table.mark_line().encode(
        alt.X("step:Q", title="step"),
        alt.Y("value:Q", title="@y", scale=free),
        alt.Color("column:N", title=None, sort=None, legend=above),
        alt.StrokeDash("kind:N", title=None, sort=["counterfactual", "recorded"], legend=above),
    )
    found = {
        "ranges": (span + inner, max(80, 26 * columns)),
        "histogram": (histogram, 200),
        "steps": (steps, 220),
    }
    if series:
        named = alt.Scale(domain=list(series))
        below = alt.Legend(orient="bottom", columns=1, labelLimit=260, symbolOpacity=1)
        colour = alt.Color("series:N", title=None, scale=named, legend=below)
        over = table.encode(alt.X("update:Q", title="updates"), color=colour)
        low = alt.Y("low:Q", title="@y", stack=False, scale=free)
        band = over.mark_area(opacity=0.2).encode(low, alt.Y2("high:Q"))
        styles = alt.StrokeDash("series:N", title=None, scale=named)
        mean = over.mark_line().encode(alt.Y("mean:Q", title="@y"), styles)
        who = alt.Y("series:N", title=None, sort=list(series), axis=alt.Axis(labelLimit=160))
        reach = table.encode(who, color=alt.Color("series:N", legend=None, scale=named))
        interval = reach.mark_rule(strokeWidth=2).encode(alt.X("low:Q", title="@x", scale=free), alt.X2("high:Q"))
        dots = reach.mark_point(filled=True, size=70).encode(alt.X("mean:Q", title="@x"))
        found |= {"curves": (band + mean, 280), "ends": (interval + dots, 34 * len(series) + 20)}
    return {name: _specification(chart, height) for name, (chart, height) in found.items()}


def _specification(chart: Any, height: int) -> dict[str, Any]:
    told: dict[str, Any] = chart.properties(width="container", height=height).to_dict()
    return {key: value for key, value in told.items() if key not in ("config", "datasets")}


@cache
def library() -> str:
    """Vega, Vega-Lite and their embedder as one script, of the version that the specifications are for."""
    import altair
    import vl_convert

    wanted = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    wanted = wanted if wanted in known else known[-1]  # the newest one draws the charts of a newer Altair
    script = vl_convert.javascript_bundle(vl_version=wanted)  # type: ignore[call-arg]  # by its stub alone
    # A script in a page ends at the first such word, even within a string.
    return str(script).replace("</script", r"<\/script")
