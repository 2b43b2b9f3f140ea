"""The command that draws a graph over its data, learns one from data, and explains a learned one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, Positional, arg

from mocoda.cli.options import AS_IT_SAYS, Device, Overwrite, ReadOptions, Seed, check_device, console, say
from mocoda.cli.parser import Command, Flat, Help
from mocoda.engine.errors import InputError
from mocoda.engine.files import check_target

if TYPE_CHECKING:
    from mocoda.graph.local_graph import LocalGraph

OptionalData = Annotated[str | None, arg(metavar="DATA"), Help("Recorded data: {formats}.")]


@dataclass(frozen=True)
class Graph(Command):
    """Draw a graph over its data, or learn one from data: what depends on what, and in which share of the rows."""

    file: Annotated[Positional[str], arg(metavar="GRAPH|DATA")]
    """Graph file: Python (which is run), TOML, or learned (FILE.graph). With --learn or --graph, the data."""
    data: OptionalData = None
    graph: Annotated[Path | None, arg(metavar="FILE")] = None
    """Graph file, where the data is named first."""
    out: Annotated[Path | None, arg(metavar="FILE")] = None
    """What to write: a PNG file, graph.png if not given; with --learn the graph, learned.graph if not given; with
    --explain a TOML graph file, nothing if not given."""
    learn: FlagCreatePairsOff[bool] = False
    """Learn the graph from the data, and write it."""
    factors: Annotated[Path | None, arg(metavar="FILE")] = None
    """TOML file with [state] and [action], the factors to learn a graph of; without it, by the names of the columns:
    ball.x and ball_x belong to ball."""
    unseen: str | None = None
    """Linked or apart: what factors are that never come near each other in the data, so that nothing can be learned."""
    caution: float = 0.02
    """A learned edge is there where it is likelier than this."""
    quick: FlagCreatePairsOff[bool] = False
    """Learn in less time, and more coarsely."""
    explain: FlagCreatePairsOff[bool] = False
    """Propose written rules for the edges of a learned graph."""
    reading: Flat[ReadOptions] = AS_IT_SAYS
    seed: Seed = 0
    device: Device = "cpu"
    overwrite: Overwrite = False

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
        from mocoda.graph.figure import draw_graph

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
        from mocoda.graph import GraphConfig, learn_graph
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
            config=GraphConfig.quick() if self.quick else None,
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
    from mocoda.graph.figure import dependency_table

    console.print(dependency_table(graph, graph.shares(rows)))  # type: ignore[arg-type]
    say(f"Modelled together: {'; '.join(', '.join(group) for group in graph.parent_sets)}")
