"""Writes the page: one HTML file about recorded and generated rows, and about trainings, that opens from a disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mocoda.analysis.graph_check import Advice
from mocoda.analysis.page.charts import charts, edges, library, ranges
from mocoda.analysis.page.row_browser import (
    WORST,
    Split,
    choose_episodes,
    choose_rows,
    pack_rows,
)
from mocoda.analysis.page.run_folders import audit_panel, check_panel, training_curves
from mocoda.analysis.page.scene import Projection, map_of, scene_of
from mocoda.analysis.row_audit import Audit
from mocoda.analysis.scores import generated, score_rows
from mocoda.data.editing import HEAD, HEAD_BY_SIZE, content_of
from mocoda.data.episode_scores import numbered, score_episodes
from mocoda.data.formats.shard_folder import Excerpt
from mocoda.data.transitions import Transitions
from mocoda.engine.errors import InputError, check_counts
from mocoda.engine.files import VERSION, whole_file
from mocoda.engine.randomness import Stream, as_stream
from mocoda.graph.local_graph import LocalGraph

MAX_DRAWN = 14  # factors of a graph that is drawn; a larger one is a table only
HERE = Path(__file__).parent


def report(
    path: str | Path,
    data: Transitions | Excerpt | None = None,
    graph: LocalGraph | None = None,
    *,
    recorded: Transitions | None = None,
    task: object = None,
    audit: Audit | Mapping[str, Any] | str | Path | None = None,
    check: Advice | Mapping[str, Any] | str | Path | None = None,
    training: Sequence[str | Path] = (),
    rows: int = 2_000,
    show: Sequence[int] = (),
    name: str = "data",
    seed: int | Stream = 0,
) -> None:
    """Writes a page about data, about trainings or about both: one HTML file that needs no server and no network.

    It begins with the scores of `mocoda.score_rows` and the worst rows. Then come a map of all rows, a browser of rows
    and episodes (counterfactual beside recorded rows, each part with the row that it comes from, the worst first), the
    graph with the share of the rows that have each edge, and ranges. Flagged rows can be exported as a list, which
    `mocoda.drop` takes.

    path        file to write
    data        recorded and generated rows, as from `augment` and `augment_episodes`; or an excerpt of them, as from
                `read_excerpt`
    graph       of the data
    recorded    the rows that the data was made from, if it holds no recorded rows
    task        draws goals, if it has an `achieved` that takes columns of the state
    audit       the result of `mocoda.audit`, or a folder of `mocoda audit`
    check       the result of `mocoda.check`, or a folder of `mocoda check`
    training    folders of `mocoda train`
    rows        maximum number of rows in the page: half of them those with the lowest scores, a quarter recorded ones,
                and random ones for the rest. Whole episodes are added, as many rows again. There are fewer if rows are
                wide, so that the file stays below 10 MB
    show        numbers of rows that the page holds in any case
    name        title of the page
    """
    check_report()
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    if (data is None) != (graph is None):
        raise InputError("a report about data needs its graph: pass both data and graph, or neither.")
    if data is None and not training:
        raise InputError("there is nothing to report on: pass data and its graph, or training=[folder].")
    check_counts(rows=rows)
    numbers, of = (data.numbers, data.whole) if isinstance(data, Excerpt) else (None, None)
    data = data.table if isinstance(data, Excerpt) else data
    about: dict[str, Any] = {"name": name, "version": VERSION, "panels": [], "data": None, "whole": 0, "of": of}
    held: dict[str, Any] = {"head": HEAD}
    columns = 0
    if data is not None and graph is not None:
        graph.check_data(data)
        split = _split(data.to("cpu"), None if recorded is None else recorded.to("cpu"), graph)
        split = replace(split, numbers=numbers)
        columns = len(data.columns)
        stream = as_stream(seed, "report", device="cpu")
        own, told = _of_data(split, graph, task, rows, _checked(show, split, of), stream)
        held |= own if of is None else own | {"head": HEAD_BY_SIZE, "content": f"{of} rows"}
        about |= told
    if audit is not None:
        about["panels"].append(audit_panel(audit))
    if check is not None:
        about["panels"].append(check_panel(check))
    held["training"] = training_curves(training) if training else None
    series = list(dict.fromkeys(one["series"] for one in held["training"]["ends"])) if training else []
    held["charts"] = charts(columns, series)
    about["training"] = held["training"]
    texts = {
        file: (HERE / file).read_text("utf-8") for file in ("page.css", "page.js", "rows.js", "map.js", "episodes.js")
    }
    html = templates.get_template("page.html").render(
        **about,
        style=texts.pop("page.css"),
        library=library(),
        script="\n".join(texts.values()),
        held=json.dumps(held, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
    )
    with whole_file(path) as part:
        part.write_text(html, "utf-8")


def check_report() -> None:
    """Raises if pages cannot be written. Call it before long work."""
    try:
        for name in ("altair", "jinja2", "vl_convert"):
            import_module(name)
    except ImportError as error:
        raise InputError(f'to write a page, pip install "mocoda[report]" ({error}).') from error


def _split(data: Transitions, recorded: Transitions | None, graph: LocalGraph) -> Split:
    """The recorded and the generated rows, with scores of all."""
    if recorded is not None:
        graph.check_data(recorded)
    made, scores = generated(data), score_rows(data, graph, recorded=recorded)
    known = data[~made] if recorded is None else recorded
    none = torch.full((len(known),), -1, device=data.device)
    return Split(
        data,
        replace(scores, generated=made),
        known,
        data[made] if bool(made.any()) else None,
        (~made).nonzero()[:, 0] if recorded is None else none,
        made.nonzero()[:, 0],
        recorded is not None,
    )


def _checked(show: Sequence[int], split: Split, of: int | None) -> Tensor:
    """The places of the rows to show."""
    rows = len(split.data) if of is None else of
    for row in show:
        if not 0 <= row < rows:
            raise InputError(f"the data has no row {row} to show; its rows are 0 to {rows - 1}.")
    wanted = torch.tensor(list(show), dtype=torch.long, device=split.data.device)
    if split.numbers is None:
        return wanted
    if not bool((there := torch.isin(wanted, split.numbers)).all()):
        raise InputError(f"row {int(wanted[~there][0])} is not in the excerpt: pass show= to read_excerpt, too.")
    return torch.searchsorted(split.numbers, wanted)


def _of_data(
    split: Split, graph: LocalGraph, task: object, rows: int, show: Tensor, stream: Stream
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values about data that the scripts use, and those that the template uses."""
    data, tables = split.data, split.tables
    chosen, sample = choose_rows(split, rows, show, stream)
    judged, own = None, {name: array.numpy() for name, array in split.known.arrays().items()}
    if numbered(own) and not split.elsewhere:
        judged = score_episodes(own, data.columns, split.named(split.known_numbers).numpy())
    ranked = [] if judged is None else [(int(judged.episode[at]), judged.reasons[at]) for at in judged.ranked]
    episodes = choose_episodes(split, rows, [number for number, _ in ranked])
    numbers_held, shown_episodes = chosen, {*episodes.tolist()}
    if data.episode is not None and len(episodes):
        whole = torch.isin(data.episode, episodes).nonzero()[:, 0]
        numbers_held = torch.cat([chosen, whole]).unique()
    of_edges, columns = edges(tables, graph), ranges(tables)
    projection = Projection.of(split.known.rows)
    views = map_of(tables, projection)
    scores = split.scores if split.made is not None else split.of_recorded
    worst = scores.worst(WORST)
    made = 0 if split.made is None else len(split.made)
    held = {
        "content": content_of(data),
        "columns": columns,
        "states": data.state.shape[1],
        "parents": list(graph.parents),
        "children": len(graph.children),
        "factors": [list(graph.factors[name]) for name in graph.parents],
        "sparsest": graph.sparsest.nonzero().tolist(),
        "aspects": list(scores.details),
        "views": views,
        "projection": {"mean": projection.mean.tolist(), "axes": projection.axes.tolist()},
        "places": [
            *data.columns,
            *(f"component {n + 1} ({100 * projection.shares[n]:.0f}% of the recorded variance)" for n in range(2)),
        ],
        "reasons": {number: reason for number, reason in ranked if reason and number in shown_episodes},
        "rows": pack_rows(split, numbers_held, sample, graph),
        "episodes": episodes.tolist(),
        "scene": scene_of(split.known, graph, task),
    }
    told = {
        "data": data,
        "recorded": len(split.known),
        "made": made,
        "recipe": data.source.get("recipe") if made else None,
        "in_page": len(numbers_held),
        "whole": len(episodes),
        "edges": of_edges,
        "graph": _drawing(graph, of_edges) if len(graph.parents) <= MAX_DRAWN else None,
        "children": list(graph.children),
        "columns": columns,
        "views": [view["label"] for view in views],
        "answer": split.scores.to_json(),
        "audited": int((scores.details["confirmed"][scores.generated] >= 0).sum())
        if "confirmed" in scores.details
        else 0,
        "worst": [
            (int(split.named(at)), {aspect: float(values[at]) for aspect, values in scores.details.items()})
            for at in worst
        ],
        "flagged": [(number, reason, number in shown_episodes) for number, reason in ranked if reason],
        "recorded_episodes": len(ranked),
        "elsewhere": split.elsewhere,
    }
    return held, told


def _drawing(graph: LocalGraph, edges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Places of the parents, on the left, of the children, and of the edges between them, in pixels."""
    wide = 30 + 8 * max(map(len, graph.parents))
    far = wide + 230
    lines = []
    for edge in edges:
        p, c = edge["places"]
        always = all(share == 1 for share in edge["shares"])
        lines.append({**edge, "from": (wide + 8, 30 + 40 * p), "to": (far, 30 + 40 * c), "always": always})
    boxes = [
        (name, 8, 14 + 40 * place, "state" if name in graph.state else "action")
        for place, name in enumerate(graph.parents)
    ]
    boxes += [(f"{name}′", far + 6, 14 + 40 * place, "next") for place, name in enumerate(graph.children)]
    return {
        "lines": lines,
        "boxes": boxes,
        "wide": wide,
        "width": far + wide + 14,
        "height": 20 + 40 * len(graph.parents),
    }
