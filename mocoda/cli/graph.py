"""The commands that draw, learn and explain a graph, and that check it against data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from torch import Tensor
from tyro.conf import Positional, arg

from mocoda.analysis import check, score_rows
from mocoda.cli import options as opt
from mocoda.cli.options import say
from mocoda.data import write
from mocoda.engine.errors import InputError
from mocoda.engine.files import write_json
from mocoda.engine.progress import PlainProgress
from mocoda.engine.runs import RunFolder
from mocoda.graph import LEARNERS, LearnedGraph, LocalGraph, learn_graph, load_graph
from mocoda.graph.columns import ColumnNames
from mocoda.graph.diagram import dependency_table, draw_graph
from mocoda.graph.explain import explain, rules_as_toml
from mocoda.graph.graph_file import load_factors

SHOWN_DOUBTS = 8  # edges


@dataclass(frozen=True)
class Graph(opt.Command):
    """Draw a graph over its data, or learn one from data: what depends on what, and in which share of the rows.

    The settings of the learner that --learner names are options too.
    """

    kind = "learner"

    file: Annotated[Positional[str], arg(metavar="GRAPH|DATA")]
    """Graph file: Python (which is run), TOML, or learned (FILE.graph). With --learn or --graph, the data."""
    data: opt.MaybeData = None
    """Recorded data to draw the graph over."""
    graph: opt.MaybeFile = None
    """Graph file, where the data is named first."""
    out: opt.MaybeFile = None
    """File to write: a picture (graph.png unless given); with --learn the graph (learned.graph unless given); with
    --explain a TOML graph file (none unless given)."""
    learn: opt.Flag = False
    """Learn the graph from the data, and write it."""
    learner: opt.Name = "gates"
    """How the graph is learned: gates (accurate) or gradient (simple)."""
    factors: opt.MaybeFile = None
    """TOML file with [state] and [action]: the factors of the graph to learn. Without it they follow from the names of
    the columns: ball.x and ball_x belong to ball."""
    unseen: opt.Maybe[Literal["linked", "apart"]] = None
    """What to assume about factors that never come near each other in the data, so that nothing can be learned about
    them: linked, the default, is safe; with apart, new rows are false if the factors do interact."""
    caution: opt.Maybe[float] = None
    """Probability above which a learned edge counts as present; unless given, the learner's own: 0.02 for gates."""
    quick: opt.Flag = False
    """Learn in less time, but less accurately."""
    explain: opt.Flag = False
    """Propose written rules for the edges of a learned graph."""
    settings: opt.Flat[Any] = None
    seed: opt.Seed = 0
    device: opt.Device = "cpu"
    overwrite: opt.Overwrite = False
    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        learner = LEARNERS[opt.value_of("learner", words, cls.learner)]
        return {"settings": learner.quick() if "--quick" in words else learner()}

    def run(self) -> None:
        if self.learn:
            self._learn()
        elif self.explain:
            self._explain()
        else:
            self._draw()

    def _read(self, out: Path | None) -> tuple[LocalGraph, Tensor, str]:
        """The graph, the rows of the data and a title, after a look at where to write."""
        if self.graph is None and self.data is None:
            raise InputError(
                f"nothing says which data to draw {self.file!r} over: add --data with recorded data; or, if it is the "
                "data, add --graph with a graph file, or --learn to learn a graph from it."
            )
        file, data = (Path(self.file), str(self.data)) if self.graph is None else (self.graph, self.file)
        if out is not None:
            opt.check_file(out, [data, file], self.overwrite)
        recorded = self.reading.read(data)
        return (
            load_graph(file, recorded),
            recorded.rows,
            f"{file.name}, over {len(recorded):,} rows of {Path(data).name}",
        )

    def _draw(self) -> None:
        out = self.out or Path("graph.png")
        graph, rows, title = self._read(out)
        draw_graph(graph, out, rows, title)
        _print(graph, rows)
        say(f"Drawn: {out}")

    def _learn(self) -> None:
        if self.graph is not None or self.data is not None or self.explain:
            raise InputError("--learn takes the data alone: mocoda graph DATA --learn --out learned.graph.")
        out = self.out or Path("learned.graph")
        if out.suffix != ".graph":
            raise InputError(f"a learned graph is written to a file called *.graph, got {str(out)!r}.")
        opt.check_file(out, [self.file], self.overwrite)
        opt.check_device(self.device)
        recorded = self.reading.read(self.file).to(self.device)
        state, action = (None, None) if self.factors is None else load_factors(self.factors, ColumnNames.of(recorded))
        options: dict[str, Any] = {
            "seed": self.seed,
            "caution": self.caution,
            "unseen": self.unseen,
            "learner": self.settings,
        }
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always", UserWarning)
            graph = learn_graph(recorded, state, action, **options, progress=PlainProgress())
        for doubt in doubts:
            say(f"Warning: {doubt.message}")
        graph.save(out)
        _print(graph, recorded.rows)
        say(f"Written to {out}. Is it to be trusted? mocoda check {self.file} --graph {out}")

    def _explain(self) -> None:
        if self.out is not None and self.out.suffix != ".toml":
            raise InputError(f"rules are written to a TOML file (.toml), got {str(self.out)!r}.")
        graph, rows, _ = self._read(self.out)
        if not isinstance(graph, LearnedGraph):
            raise InputError("this graph is written and needs no explanation; --explain is for learned graphs.")
        rules = explain(graph, rows)
        for rule in rules:
            say(str(rule))
        if not rules:
            say("Every edge is there in all rows, or in none: there is nothing to explain.")
        if self.out is not None:
            self.out.write_text(rules_as_toml(graph, rules), encoding="utf-8")
            say(f"Written to {self.out}")


def _print(graph: LocalGraph, rows: Tensor) -> None:
    opt.show(dependency_table(graph, graph.shares(rows)))
    say(f"Modelled together: {'; '.join(', '.join(group) for group in graph.parent_sets)}")


@dataclass(frozen=True, kw_only=True)
class Check(opt.OnData):
    """Check whether the data supports its graph, which edges are missing, and which recipe to try."""

    quick: opt.Flag = False
    """Take less time: the answer is coarser, and small effects may go unnoticed."""
    details: opt.Flag = False
    """Print the numbers behind the recommendation, too."""
    device: opt.Device = "cpu"
    out: opt.Folder = Path("runs/check")
    """Folder for advice.json."""
    keep: Annotated[opt.Maybe[str], arg(metavar="FILE")] = None
    """Write the data to this file with the scores of its rows, from 0 to 1, as provenance: `valid`, `supported`, `new`
    and, if it was noted how far models disagree, `agreed`."""

    def run(self) -> None:
        kept = None if self.keep is None else opt.check_out(self.keep, [self.data, self.world.graph]).path
        data, world = self.read(self.device)
        answer = self.out / "advice.json"
        settings = self.identity(data, world, "details", "keep")
        with RunFolder(self.out, "check", settings, [answer.name], self.overwrite, kept) as run:
            advice = check(data, world.graph, seed=self.seed, quick=self.quick, progress=run.progress)
            doubts = world.graph.doubts(data.rows) if isinstance(world.graph, LearnedGraph) else None
            write_json(answer, advice.to_json() | ({} if doubts is None else {"unsure": doubts}))
            if self.keep is not None:
                scores = score_rows(data, world.graph, seed=self.seed)
                write(scores.keep(data), self.keep)
                opt.show(scores)
        if self.details:
            opt.show(advice.details)
        for sentence in advice.recommendation:
            say(sentence)
        if doubts is not None:
            shown = ", ".join(f"{edge} in {100 * share:.2g}%" for edge, share in list(doubts.items())[:SHOWN_DOUBTS])
            say(f"Where the learned graph is unsure of an edge, in percent of the rows: {shown or 'nowhere'}")
        say(f"Written to {answer}{'' if self.details else '; --details prints the numbers'}")
