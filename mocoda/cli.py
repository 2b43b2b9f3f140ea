"""words -> work: one verb per stage. Everything heavy is imported by the verb that needs it, so help comes at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich.console
import tyro
from rich.text import Text
from tyro.conf import Positional, arg

from mocoda.files import InputError, check_writable, discard_unfinished, unknown_name, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from mocoda.paper import Measured1

# Figure 3's red areas: where the two kinds of recorded walks start, and the middle of the square.
SHADED = (((0.0, 0.0), 0.15, 0.4), ((0.6, 0.0), 0.4, 0.15), ((0.4, 0.4), 0.2, 0.2))

out = rich.console.Console(width=None if sys.stdout.isatty() else 120)


def demo(out_dir: Annotated[Path, arg(name="out")] = Path("runs/demo"), device: str = "cpu") -> None:
    """The whole method in minutes: data, graph, MoCoDA, a small Table 1 and its figures.

    Args:
        out_dir: Folder for the augmented data, the table and the figures.
        device: cpu or cuda.
    """
    measured = _table1("quick", None, device, out_dir)
    from mocoda.augmentation import augment_chunks
    from mocoda.report import draw_graph
    from mocoda.runs import RunFolder
    from mocoda.transitions import save_stream

    data, parents, model = measured.datasets[0], measured.parents["mocoda"][0], measured.models["local"][0]
    file, rows = out_dir / "navigation-mocoda.hdf5", 160_000
    with RunFolder(_beside(file), "demo", {"rows": rows, "seed": 0, "device": device}) as run:
        save_stream(
            file, augment_chunks(data, parents, model, rows=rows, task=measured.task, seed=0, progress=run.progress)
        )
    draw_graph(measured.task.graph, out_dir / "graph.png", data.rows)
    say(f"{len(data):,} recorded transitions and {rows:,} counterfactual ones after them: {file}")
    say(f"Who listens to whom, and where: {out_dir}/graph.png")


def collect(
    task: Positional[str],
    rows: int = 40_000,
    seed: int = 0,
    out_file: Annotated[Path, arg(name="out")] = Path("data.hdf5"),
) -> None:
    """Record a task's data.

    Args:
        task: navigation
        rows: Transitions to record.
        seed: Same seed, same rows.
        out_file: HDF5 file to write.
    """
    from mocoda.runs import RunFolder
    from mocoda.tasks import make_task

    chosen = make_task(task)
    check_writable(out_file)
    with RunFolder(_beside(out_file), "collect", {"task": task, "rows": rows, "seed": seed}) as run:
        data = chosen.collect(rows, seed=seed)
        data.save(out_file)
        run.progress("collect", rows, rows)
    say(f"{out_file}: {data!r}")


def augment(
    data: Positional[Path],
    task: str = "navigation",
    recipe: str = "mocoda",
    architecture: str = "local",
    rows: int = 160_000,
    seed: int = 0,
    device: str = "cpu",
    keep_recorded: bool = True,
    out_file: Annotated[Path, arg(name="out")] = Path("augmented.hdf5"),
) -> None:
    """Fit parents and dynamics to recorded data and write it back with counterfactual rows after it.

    Args:
        data: HDF5 file of transitions.
        task: Gives the graph and the rewards: navigation
        recipe: emp, coda, dyna, rand, mocoda, mocoda-u or mocoda-p
        architecture: full, global or local
        rows: Transitions to generate.
        seed: Same seed, same rows.
        device: cpu or cuda.
        keep_recorded: Put the recorded rows first.
        out_file: HDF5 file to write.
    """
    from mocoda.augmentation import augment_chunks
    from mocoda.dynamics import Dynamics, fit_dynamics
    from mocoda.mechanisms import ARCHITECTURES
    from mocoda.parents import RECIPES, fit_parents
    from mocoda.runs import RunFolder
    from mocoda.tasks import make_task
    from mocoda.training import fingerprint
    from mocoda.transitions import Transitions, save_stream

    chosen = make_task(task)
    if rows < 1:
        raise InputError(f"rows must be positive, the number of rows to generate, got {rows}.")
    for kind, name, known in (("recipe", recipe, RECIPES), ("architecture", architecture, ARCHITECTURES)):
        if name not in known:
            raise unknown_name(kind, name, known)
    _check_device(device)
    check_writable(out_file)
    recorded = Transitions.load(data).to(device)
    settings = {"task": task, "recipe": recipe, "architecture": architecture, "rows": rows, "seed": seed}
    content = fingerprint(recorded.rows, recorded.next_state)
    settings |= {"data": str(data), "content": content, "device": device, "keep_recorded": keep_recorded}
    with RunFolder(_beside(out_file), "augment", settings) as run:
        saved = run.path / "dynamics.safetensors"
        model: Dynamics | None = None
        if recipe not in ("emp", "coda"):  # these recombine recorded transitions
            if not saved.exists():
                checkpoint = run.path / "checkpoint.safetensors"
                fit_dynamics(
                    recorded, chosen.graph, architecture, seed=seed, progress=run.progress, checkpoint=checkpoint
                ).save(saved)
                checkpoint.unlink(missing_ok=True)
            model = Dynamics.load(saved, chosen.graph).to(device)
        parents = fit_parents(recorded, chosen.graph, recipe, seed=seed, task=chosen, model=model)
        chunks = augment_chunks(
            recorded,
            parents,
            model,
            rows=rows,
            task=chosen,
            seed=seed,
            keep_recorded=keep_recorded,
            progress=run.progress,
        )
        total = save_stream(out_file, chunks)
    say(f"{out_file}: {total:,} transitions, {rows:,} of them new by recipe {recipe}")


def paper(
    table: Positional[str],
    preset: str = "quick",
    seeds: int | None = None,
    device: str = "cpu",
    predict_change: bool | None = None,
    standardise: bool | None = None,
    out_dir: Annotated[Path | None, arg(name="out")] = None,
) -> None:
    """Measure a table of the paper and draw its figures.

    Args:
        table: table1
        preset: quick (2 minutes on 2 cores) or paper (its sizes and epochs; meant for a GPU)
        seeds: How many seeds, counted from 0; the preset says so unless given.
        device: cpu or cuda.
        predict_change: Let the networks predict next state minus state (both presets do) or the next state.
        standardise: Scale inputs and targets (quick does) or leave them as they are (paper does).
        out_dir: Folder to write; runs/TABLE-PRESET unless given.
    """
    if table != "table1":
        raise unknown_name("table", table, ["table1"])
    _table1(preset, seeds, device, out_dir or Path(f"runs/{table}-{preset}"), predict_change, standardise)


def bench(device: str = "cpu", out_file: Annotated[Path, arg(name="out")] = Path("runs/bench.json")) -> None:
    """Time the pieces against scikit-learn and against their targets, in one run.

    Args:
        device: cpu or cuda.
        out_file: JSON file to write, such as results/bench-cpu.json.
    """
    _check_device(device)
    check_writable(out_file)
    from mocoda.bench import as_table, measure

    results = measure(device, lambda name: say(f"timing {name} …"))
    out.print(as_table(results))
    write_json(out_file, results)
    say(f"Written to {out_file}")


def say(sentence: str) -> None:
    """Prints a sentence as it is: brackets are no markup, and paths are not broken."""
    out.print(Text(sentence), soft_wrap=True)


def main() -> None:
    """The command line; bad input ends in one line and exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    verbs: dict[str, Callable[..., None]] = {
        "demo": demo,
        "collect": collect,
        "augment": augment,
        "paper": paper,
        "bench": bench,
    }
    description = "Model-based counterfactual data augmentation: recorded transitions in, unseen ones out."
    try:
        tyro.extras.subcommand_cli_from_dict(verbs, prog="mocoda", description=description)
    except InputError as error:
        rich.console.Console(stderr=True).print(Text("error: ", "red").append(str(error), "default"), soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _terminate(number: int, frame: object) -> None:
    """Ends at once: an exception could be raised where nobody passes it on, in a library's callback, say."""
    discard_unfinished()
    os._exit(128 + number)


def _table1(
    preset: str,
    seeds: int | None,
    device: str,
    folder: Path,
    predict_change: bool | None = None,
    standardise: bool | None = None,
) -> Measured1:
    _check_device(device)
    from mocoda.paper import Table1, table1
    from mocoda.report import as_table, draw_errors, draw_transitions
    from mocoda.runs import RunFolder

    settings = Table1.named(preset)
    settings = replace(settings, seeds=settings.seeds if seeds is None else seeds)
    dynamics = settings.dynamics
    if predict_change is not None:
        dynamics = replace(dynamics, predict_change=predict_change)
    if standardise is not None:
        dynamics = replace(dynamics, standardise=standardise)
    settings = replace(settings, dynamics=dynamics)
    outputs = ("table1.json", "table1.png", "figure3.png")
    with RunFolder(folder, "paper table1", {**asdict(settings), "device": device}, outputs) as run:
        measured = table1(settings, device=device, folder=folder, progress=run.progress)
    results, *figures = (folder / name for name in outputs)
    write_json(results, measured.results)
    draw_errors(measured.results, figures[0])
    draw_transitions(_panels(measured), figures[1], SHADED)
    out.print(
        as_table(measured.results, "Table 1: next-state error × 100 (mean norm), by architecture and distribution")
    )
    took = f"{measured.results['seconds']} s{' after resuming' if measured.results['resumed'] else ''}"
    say(f"Measured in {took} on {measured.results['device']}; cells in {results}")
    say(f"Figures: {', '.join(map(str, figures))}")
    return measured


def _panels(measured: Measured1) -> dict[str, tuple[Tensor, Tensor]]:
    """About 1,500 transitions of each distribution: recorded ones of emp, the locally factored model's of the rest."""
    panels = {}
    for name in ("emp", "dyna", "mocoda", "mocoda-u", "rand"):
        rows = measured.rows[name][0]
        rows = rows[:: max(1, len(rows) // 1_500)]
        following = measured.task.step(rows) if name == "emp" else measured.models["local"][0].sample(rows, seed=0)
        panels[name] = (rows[:, :2], following)
    return panels


def _beside(file: Path) -> Path:
    """The folder that says how `file` was made."""
    return file.with_name(f"{file.name}.run")


def _check_device(device: str) -> None:
    import torch

    here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if device not in (*here, *(["cuda"] if len(here) > 1 else [])):
        raise InputError(f"device {device!r} is not here; there is: {', '.join(here)}.")


if __name__ == "__main__":
    main()
