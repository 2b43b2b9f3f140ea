"""`python -m experiments` lists the questions; with a name it measures, and with `render` it makes the READMEs anew."""

from __future__ import annotations

import sys
from dataclasses import dataclass, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import rich.console
import rich.markdown
import tyro

from mocoda.engine.errors import InputError

USAGE = """
python -m experiments NAME --preset quick|paper --device cpu|cuda --out FOLDER [settings]    measure
python -m experiments NAME --preset paper --help                                             its settings
python -m experiments render [NAME ...]                                                      READMEs from JSON"""


@dataclass(frozen=True)
class Options:
    """Where to measure."""

    device: str = "cpu"
    """cpu or cuda."""
    workers: int | None = None
    """Processes that simulate, or do other jobs side by side. Without it one per core."""
    out: Path | None = None
    """Folder to write; without it runs/NAME-PRESET. After a kill, the same command continues there."""
    only: tuple[str, ...] = ()
    """Agents and columns of a table to measure now; the same command without them measures the rest."""
    overwrite: bool = False
    """Replace what an earlier run wrote there. Only files which that run made are removed."""


def main(words: list[str]) -> int:
    console = rich.console.Console(width=None if sys.stdout.isatty() else 140)
    try:
        if not words or words[0] in ("-h", "--help"):
            from experiments.experiment import experiment_names
            from experiments.readme import answer_of

            for name in experiment_names():
                console.print(f"[bold]{name}[/bold]  {answer_of(name)}", highlight=False)
            console.print(USAGE, markup=False, highlight=False)
        elif words[0] == "render":
            from experiments.experiment import experiment_names
            from experiments.readme import render

            for file in render(words[1:] or experiment_names()):
                console.print(f"made anew: {file}", markup=False)
        else:
            run(words[0], words[1:], console)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def run(name: str, words: list[str], console: rich.console.Console) -> None:
    """Measures as the options say, and prints the table."""
    from experiments.experiment import Experiment, find_experiment, run_experiment
    from mocoda.cli.options import check_device

    preset = find_experiment(name, preset_in(words))
    kind: Any = make_dataclass(
        "Call",
        [
            ("experiment", Annotated[type(preset), tyro.conf.arg(name="")], preset),
            ("options", Annotated[Options, tyro.conf.arg(name="")], Options()),
        ],
        frozen=True,
    )
    call: Any = tyro.cli(kind, prog=f"python -m experiments {name}", description=type(preset).__doc__, args=words)
    experiment: Experiment = call.experiment
    options: Options = call.options
    check_device(options.device)
    folder = options.out or Path(f"runs/{name}-{experiment.preset}")
    how = {name: getattr(options, name) for name in ("device", "workers", "only", "overwrite")}
    results = run_experiment(experiment, folder, **how)
    console.print(rich.markdown.Markdown(experiment.table(results)))
    again = " since it was resumed" if results["resumed"] else ""
    console.print(f"Measured in {results['seconds']} s{again} on {results['device']}.", highlight=False)
    console.print(f"Files: {', '.join(str(folder / output) for output in experiment.outputs)}", soft_wrap=True)


def preset_in(words: list[str]) -> str:
    """The preset that the words name; its settings are the defaults of all other options."""
    for word, after in pairwise([*words, ""]):
        if word == "--preset" and after:
            return after
        if word.startswith("--preset="):
            return word.partition("=")[2]
    return "quick"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
