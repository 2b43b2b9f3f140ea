"""words -> work, for people's data: the verbs that read, judge, extend and convert it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mocoda.console import beside, check_device, content, say
from mocoda.files import InputError, check_writable, unknown_name


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
        task: Gives the graph and the rewards: navigation or hooksweep2
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
    from mocoda.transitions import Transitions, save_stream

    chosen = make_task(task)
    if rows < 1:
        raise InputError(f"rows must be positive, the number of rows to generate, got {rows}.")
    for kind, name, known in (("recipe", recipe, RECIPES), ("architecture", architecture, ARCHITECTURES)):
        if name not in known:
            raise unknown_name(kind, name, known)
    check_device(device)
    check_writable(out_file)
    recorded = Transitions.load(data).to(device)
    settings = {"task": task, "recipe": recipe, "architecture": architecture, "rows": rows, "seed": seed}
    settings |= {"data": str(data), "content": content(recorded), "device": device, "keep_recorded": keep_recorded}
    with RunFolder(beside(out_file), "augment", settings) as run:
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
