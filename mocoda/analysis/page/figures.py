"""The charts of the page, by Vega-Altair; the browser gives each its rows, and the titles that depend on a choice.

A title that begins with @ is such a choice: "@x" is what the reader has put on the x axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from mocoda.analysis.page.measures import KINDS

TABLE = "table"  # what the browser calls a chart's rows


def charts(columns: int, series: Sequence[str] = ()) -> dict[str, Any]:
    """Vega-Lite specifications by name; `columns` of the table, and the names of training curves."""
    import altair as alt

    data = alt.NamedData(name=TABLE)
    kind = alt.Color(
        "kind:N", title=None, scale=alt.Scale(domain=list(KINDS)), legend=alt.Legend(orient="top", symbolOpacity=1)
    )
    dash = alt.StrokeDash("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=[[1, 0], [5, 3]]))
    shape = alt.Shape("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=["circle", "triangle-up"]))
    y = alt.Y("column:N", title=None, sort=None, axis=alt.Axis(labelLimit=140))
    offset = alt.YOffset("kind:N", sort=list(KINDS))
    span = alt.Chart(data).mark_rule().encode(alt.X("low:Q", title="@x"), alt.X2("high:Q"), y, offset, kind)
    inner = alt.Chart(data).mark_bar(height=5).encode(alt.X("inner_low:Q"), alt.X2("inner_high:Q"), y, offset, kind)
    outline = alt.Chart(data).encode(
        alt.X("x:Q", title="@x", scale=alt.Scale(zero=False, nice=False)),
        alt.Y("share:Q", title="@y", stack=False),
        kind,
    )
    bars = outline.mark_line(interpolate="step-after").encode(dash) + outline.mark_area(
        interpolate="step-after", opacity=0.18
    )
    points = (
        alt.Chart(data)
        .mark_point(filled=True, size=26, opacity=0.55)
        .encode(
            alt.X("x:Q", title="@x", scale=alt.Scale(zero=False)),
            alt.Y("y:Q", title="@y", scale=alt.Scale(zero=False)),
            kind,
            shape,
            tooltip=[alt.Tooltip("row:Q", title="row"), "kind:N"],
        )
    )
    steps = (
        alt.Chart(data)
        .mark_line()
        .encode(
            alt.X("step:Q", title="step"),
            alt.Y("value:Q", title="@y", scale=alt.Scale(zero=False)),
            alt.Color("column:N", title=None, sort=None, legend=alt.Legend(orient="top")),
            alt.StrokeDash("kind:N", title=None, sort=["counterfactual", "recorded"], legend=alt.Legend(orient="top")),
        )
    )
    heights = {"ranges": max(80, 26 * columns), "histogram": 200, "points": 340, "steps": 220}
    found = {"ranges": span + inner, "histogram": bars, "points": points, "steps": steps}
    if series:
        line = alt.Color("series:N", title=None, scale=alt.Scale(domain=list(series)), legend=_legend(alt))
        over = alt.Chart(data).encode(alt.X("update:Q", title="updates"), color=line)
        band = over.mark_area(opacity=0.2).encode(
            alt.Y("low:Q", title="@y", stack=False, scale=alt.Scale(zero=False)), alt.Y2("high:Q")
        )
        mean = over.mark_line().encode(
            alt.Y("mean:Q", title="@y"), alt.StrokeDash("series:N", title=None, scale=alt.Scale(domain=list(series)))
        )
        who = alt.Y("series:N", title=None, sort=list(series), axis=alt.Axis(labelLimit=160))
        reach = alt.Chart(data).encode(
            who, color=alt.Color("series:N", legend=None, scale=alt.Scale(domain=list(series)))
        )
        from_to = reach.mark_rule(strokeWidth=2).encode(
            alt.X("low:Q", title="@x", scale=alt.Scale(zero=False)), alt.X2("high:Q")
        )
        found |= {
            "curves": band + mean,
            "ends": from_to + reach.mark_point(filled=True, size=70).encode(alt.X("mean:Q", title="@x")),
        }
        heights |= {"curves": 280, "ends": 34 * len(series) + 20}
    return {name: _specification(chart, heights[name]) for name, chart in found.items()}


@cache
def library() -> str:
    """Vega, Vega-Lite and their embedder as one script, of the version that the specifications are for."""
    import altair
    import vl_convert

    wanted = ".".join(altair.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    known = vl_convert.get_vegalite_versions()
    wanted = wanted if wanted in known else known[-1]  # a newer Altair's charts are drawn by what there is
    script = vl_convert.javascript_bundle(vl_version=wanted)  # type: ignore[call-arg]  # by its stub alone
    # A script in a page ends at the first such word, even within a string.
    return str(script).replace("</script", r"<\/script")


def _legend(alt: Any) -> Any:
    return alt.Legend(orient="bottom", columns=1, labelLimit=260, symbolOpacity=1)


def _specification(chart: Any, height: int) -> dict[str, Any]:
    told: dict[str, Any] = chart.properties(width="container", height=height).to_dict()
    return {key: value for key, value in told.items() if key not in ("config", "datasets")}
