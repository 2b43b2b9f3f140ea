"""The commands that draw, learn and explain a graph, and that check it against data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from mocoda.cli.options import (
    AS_IT_SAYS,
    Command,
    Device,
    Flag,
    Flat,
    Folder,
    Maybe,
    MaybeData,
    OnData,
    Overwrite,
    ReadOptions,
    Seed,
    check_device,
    say,
    show,
    value_of,
)
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target, write_json

if TYPE_CHECKING:
    from mocoda.graph.local_graph import LocalGraph

SHOWN_DOUBTS = 8  # edges
MaybeFile = Annotated[Maybe[Path], arg(metavar="FILE")]


@dataclass(frozen=True)
class Graph(Command):
    """Draw a graph over its data, or learn one from data: what depends on what, and in which share of the rows.

    The settings of the learner that --learner names are options too.
    """

    kind = "learner"

    file: Annotated[Positional[str], arg(metavar="GRAPH|DATA")]
    """Graph file: Python (which is run), TOML, or learned (FILE.graph). With --learn or --graph, the data."""
    data: MaybeData = None
    """Recorded data to draw the graph over."""
    graph: MaybeFile = None
    """Graph file, where the data is named first."""
    out: MaybeFile = None
    """File to write: a picture (graph.png unless given); with --learn the graph (learned.graph unless given); with
    --explain a TOML graph file (none unless given)."""
    learn: Flag = False
    """Learn the graph from the data, and write it."""
    learner: Annotated[str, arg(metavar="NAME")] = "gates"
    """How the graph is learned: gates (accurate) or gradient (simple)."""
    factors: MaybeFile = None
    """TOML file with [state] and [action]: the factors of the graph to learn. Without it they follow from the names of
    the columns: ball.x and ball_x belong to ball."""
    unseen: Maybe[str] = None
    """linked or apart: what to assume about factors that never come near each other in the data, so that nothing can be
    learned about them."""
    caution: Maybe[float] = None
    """Probability above which a learned edge counts as present; unless given, the learner's own: 0.02 for gates."""
    quick: Flag = False
    """Learn in less time, but less accurately."""
    explain: Flag = False
    """Propose written rules for the edges of a learned graph."""
    settings: Flat[Any] = None
    seed: Seed = 0
    device: Device = "cpu"
    overwrite: Overwrite = False
    reading: Flat[ReadOptions] = AS_IT_SAYS

    @classmethod
    def defaults(cls, words: Sequence[str]) -> dict[str, Any]:
        from mocoda.graph import LEARNERS

        learner = LEARNERS[value_of("learner", words, "gates")]
        return {"settings": learner.quick() if "--quick" in words else learner()}

    def run(self) -> None:
        if self.learn:
            self._learn()
        elif self.explain:
            self._explain()
        else:
            self._draw()

    def _names(self) -> tuple[Path, str]:
        """The graph file and the data."""
        if self.graph is not None:
            return self.graph, self.file
        if self.data is None:
            raise InputError(
                f"nothing says which data to draw {self.file!r} over: add --data with recorded data; or, if it is the "
                "data, add --graph with a graph file, or --learn to learn a graph from it."
            )
        return Path(self.file), self.data

    def _draw(self) -> None:
        from mocoda.graph import load_graph
        from mocoda.graph.diagram import draw_graph

        graph_file, data = self._names()
        out = self.out or Path("graph.png")
        check_target(out, inputs=[data, graph_file], overwrite=self.overwrite)
        recorded = self.reading.read(data)
        graph = load_graph(graph_file, recorded)
        title = f"{graph_file.name}, over {len(recorded):,} rows of {Path(data).name}"
        draw_graph(graph, out, recorded.rows, title)
        _print(graph, recorded.rows)
        say(f"Drawn: {out}")

    def _learn(self) -> None:
        from mocoda.engine.progress import PlainProgress
        from mocoda.graph import learn_graph
        from mocoda.graph.columns import ColumnNames
        from mocoda.graph.graph_file import load_factors

        if self.graph is not None or self.data is not None or self.explain:
            raise InputError("--learn takes the data alone: mocoda graph DATA --learn --out learned.graph.")
        out = self.out or Path("learned.graph")
        if out.suffix != ".graph":
            raise InputError(f"a learned graph is written to a file called *.graph, got {str(out)!r}.")
        check_target(out, inputs=[self.file], overwrite=self.overwrite)
        check_device(self.device)
        recorded = self.reading.read(self.file).to(self.device)
        state, action = (None, None) if self.factors is None else load_factors(self.factors, ColumnNames.of(recorded))
        graph = learn_graph(
            recorded,
            state,
            action,
            seed=self.seed,
            caution=self.caution,
            unseen=self.unseen,
            learner=self.settings,
            progress=PlainProgress(),
        )
        graph.save(out)
        _print(graph, recorded.rows)
        say(f"Written to {out}. Is it to be trusted? mocoda check {self.file} --graph {out}")

    def _explain(self) -> None:
        from mocoda.graph import LearnedGraph, load_graph
        from mocoda.graph.explain import explain, rules_as_toml

        graph_file, data = self._names()
        if self.out is not None:
            if self.out.suffix != ".toml":
                raise InputError(f"rules are written to a TOML file (.toml), got {str(self.out)!r}.")
            check_target(self.out, inputs=[data, graph_file], overwrite=self.overwrite)
        recorded = self.reading.read(data)
        graph = load_graph(graph_file, recorded)
        if not isinstance(graph, LearnedGraph):
            raise InputError(
                f"{str(graph_file)!r} is written and needs no explanation; --explain is for learned graphs."
            )
        rules = explain(graph, recorded.rows)
        for rule in rules:
            say(str(rule))
        if not rules:
            say("Every edge is there in all rows, or in none: there is nothing to explain.")
        if self.out is not None:
            self.out.write_text(rules_as_toml(graph, rules), encoding="utf-8")
            say(f"Written to {self.out}")


def _print(graph: LocalGraph, rows: object) -> None:
    from mocoda.graph.diagram import dependency_table

    show(dependency_table(graph, graph.shares(rows)))  # type: ignore[arg-type]
    say(f"Modelled together: {'; '.join(', '.join(group) for group in graph.parent_sets)}")


@dataclass(frozen=True, kw_only=True)
class Check(OnData):
    """Check whether the data supports its graph, which edges are missing, and which recipe to try."""

    quick: Flag = False
    """Take less time: the answer is coarser, and small effects may go unnoticed."""
    details: Flag = False
    """Print the numbers behind the recommendation, too."""
    device: Device = "cpu"
    out: Folder = Path("runs/check")
    """Folder for advice.json."""

    def run(self) -> None:
        from mocoda.analysis import check
        from mocoda.engine.runs import RunFolder
        from mocoda.graph import LearnedGraph

        self.world.check()
        check_device(self.device)
        recorded, world = self.read(self.device)
        settings = self.identity(recorded, world, "details")
        with RunFolder(self.out, "check", settings, ("advice.json",), self.overwrite) as run:
            advice = check(recorded, world.graph, seed=self.seed, quick=self.quick, progress=run.progress)
            doubts = world.graph.doubts(recorded.rows) if isinstance(world.graph, LearnedGraph) else None
            write_json(self.out / "advice.json", advice.to_json() | ({} if doubts is None else {"unsure": doubts}))
        if self.details:
            show(advice.details)
        for sentence in advice.recommendation:
            say(sentence)
        if doubts is not None:
            shown = ", ".join(f"{edge} in {100 * share:.2g}%" for edge, share in list(doubts.items())[:SHOWN_DOUBTS])
            say(f"Where the learned graph is unsure of an edge, in percent of the rows: {shown or 'nowhere'}")
        say(f"Written to {self.out / 'advice.json'}{'' if self.details else '; --details prints the numbers'}")
