"""What audits, checks and two-sample classifiers have found, as tables of text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mocoda.analysis.advice import Advice
from mocoda.analysis.recommendation import HARDLY_SEPARABLE
from mocoda.analysis.row_audit import PREDICTORS, Audit
from mocoda.analysis.two_samples import TwoSample
from mocoda.engine.errors import InputError

AUDIT = ("confirmed", "interval", "rows", "by", "tolerance", "predictors")  # what is shown of an audit
TOLD = "against recorded ones: AUC of a classifier (0.5, it cannot tell, is perfect)"


@dataclass(frozen=True)
class Panel:
    """A heading with sentences and tables under it."""

    title: str
    sentences: Sequence[str] = ()
    tables: Sequence[Table] = field(default_factory=tuple)


@dataclass(frozen=True)
class Table:
    """Cells of text under heads; the first column names the rows."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def audit_panel(found: Audit | Mapping[str, Any] | str | Path) -> Panel:
    """The verdict of `mocoda.audit`, or of the audit.json that `mocoda audit` writes."""
    told = found.to_json() if isinstance(found, Audit) else _told(found, "audit.json", AUDIT)
    low, high = told["interval"]
    share = f"{_percent(told['confirmed'])} ({_percent(low)} to {_percent(high)})"
    said = f"{share} of {told['rows']:,} generated rows are true"
    limits = ", ".join(f"{factor} {limit:.3g}" for factor, limit in told["tolerance"].items())
    tables = []
    for name, cells in told["by"].items():
        count = "episodes" if name == "episode" else "rows"
        rows = []
        for group, cell in cells.items():
            shown = "–" if not cell["rows"] else f"{_percent(cell['share'])} ({_span(cell['interval'])})"
            recorded = cell.get("recorded")
            rows.append([str(group), f"{cell[count]:,}", shown, _percent(recorded["share"]) if recorded else "–"])
        tables.append(
            Table(
                f"Confirmed, by {name.replace('_', ' ')}",
                (name.replace("_", " "), count, "confirmed", "recorded"),
                rows,
            )
        )
    predictors = [
        [
            PREDICTORS.get(name, name),
            "–" if cell["auroc"] is None else f"{cell['auroc']:.2f} ({_numbers(cell['interval'])})",
        ]
        for name, cell in told["predictors"].items()
    ]
    if predictors:
        tables.append(
            Table("How well true rows are known without a simulator", ("the true rows have the", "AUROC"), predictors)
        )
    return Panel("Audit: is it true?", [f"{said}, within the tolerance: {limits}."], tables)


def check_panel(found: Advice | Mapping[str, Any] | str | Path) -> Panel:
    """The verdict of `mocoda.check`, or of the advice.json that `mocoda check` writes."""
    told = (
        found.to_json()
        if isinstance(found, Advice)
        else _told(found, "advice.json", ("recommendation", "details", "laws"))
    )
    laws = [(law["recipe"], law["factors"], law["auc"], law["low"], law["high"]) for law in told["laws"]]
    recipes = list(dict.fromkeys(law[0] for law in laws))
    own = {(tuple(factors), recipe): _auc(auc, (low, high)) for recipe, factors, auc, low, high in laws}
    rows = [
        [", ".join(factors), *(own.get((factors, recipe), "–") for recipe in recipes)]
        for factors in dict.fromkeys(tuple(law[1]) for law in laws)
    ]
    tables = [
        Table(
            "Two-sample: drawn parent sets against recorded ones, AUC (0.5 is perfect)", ("parent set", *recipes), rows
        )
    ]
    return Panel("Check: does the data support the graph?", list(told["recommendation"]), tables if rows else ())


def two_sample_panel(found: Mapping[tuple[str, ...], TwoSample]) -> Panel:
    """What `mocoda.two_sample` found."""
    rows = [[", ".join(factors), _auc(one.auc, one.interval)] for factors, one in found.items()]
    table = Table(
        f"Two-sample: parent sets, {TOLD}",
        ("parent set", "AUC"),
        rows,
    )
    return Panel("Two-sample test: can it be told?", (), [table])


def _told(found: Any, name: str, needed: Iterable[str]) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        told, place = found, f"what was given as {name}"
    else:
        path = Path(found)
        path = path / name if path.is_dir() else path
        place = repr(str(path))
        try:
            told = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"there is no file {place}; name a folder with {name} in it, or the file itself."
            ) from None
        except ValueError:
            raise InputError(f"{place} is not JSON, and no {name}.") from None
    missing = [key for key in needed if not isinstance(told, Mapping) or key not in told]
    if missing:
        raise InputError(f"{place} lacks {', '.join(missing)}: it is no {name} of mocoda's.")
    return told


def _auc(auc: float, interval: Sequence[float]) -> str:
    told = ", told apart" if auc > HARDLY_SEPARABLE and interval[0] > 0.5 else ""
    return f"{auc:.2f} ({_numbers(interval)}){told}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _span(interval: Sequence[float]) -> str:
    return " to ".join(_percent(end) for end in interval)


def _numbers(interval: Sequence[float]) -> str:
    return " to ".join(f"{end:.2f}" for end in interval)
