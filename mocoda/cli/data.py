"""words -> work, for people's data: the verbs that read, judge, extend, question and convert it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from mocoda.cli.console import beside, check_device, content, out, say
from mocoda.engine.errors import InputError, unknown_name
from mocoda.engine.files import check_target, check_writable, write_json


def inspect(
    data: Positional[str],
    episode_steps: int | None = None,
    json_file: Annotated[Path | None, arg(name="json")] = None,
) -> None:
    """Tell what is in recorded data, and what is wrong with it.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0
        episode_steps: Rows of an episode, where the data has no next states and does not mark ends.
        json_file: Also write all of it here.
    """
    from mocoda.data import inspection

    if json_file is not None:
        check_writable(json_file)
    found = inspection.inspect(data, episode_steps=episode_steps)
    out.print(found)
    if json_file is not None:
        write_json(json_file, found.to_json())
        say(f"Written to {json_file}")


def augment(
    data: Positional[str],
    graph: Path | None = None,
    task: str | None = None,
    recipe: str = "mocoda",
    architecture: str = "local",
    model: Path | None = None,
    rows: int = 160_000,
    seed: int = 0,
    device: str = "cpu",
    keep_recorded: bool = True,
    stratified: bool = False,
    reward: str | None = None,
    hindsight: float = 0.0,
    provenance: bool = True,
    max_disagreement: float | None = None,
    min_support: float | None = None,
    workers: int | None = None,
    out_file: Annotated[Path, arg(name="out")] = Path("augmented.hdf5"),
    overwrite: bool = False,
) -> None:
    """Fit parents and dynamics to recorded data and write it back with counterfactual rows after it.

    Killed, the same command goes on where it was.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0
        graph: File that says who listens to whom, Python (which is run) or TOML, and perhaps what is rewarded.
        task: Instead, the task that the data is of, which gives graph and rewards: navigation, hooksweep2 or objects
            (objects:6 for six of them). Data recorded by mocoda says so itself.
        recipe: emp, coda, dyna, rand, mocoda, mocoda-u or mocoda-p
        architecture: full, global or local
        model: Take the dynamics of an earlier run, such as other.hdf5.run, instead of training some; --architecture is
            then theirs.
        rows: Transitions to generate.
        seed: Same seed, same rows.
        device: cpu or cuda.
        keep_recorded: Put the recorded rows first.
        stratified: Mixtures of their own for every local graph.
        reward: file (what --graph defines), learned (from the data's own) or none; unless given, the first of these
            that there is.
        hindsight: Share of the rows whose goal is what they achieve; the others' are drawn.
        provenance: Note each row's recipe, neighbourhood, disagreement and support. Without, it is several times as
            fast.
        max_disagreement: Reject rows about which the ensemble disagrees more, in standard deviations of a step.
        min_support: Reject rows rarer than all but this share of the data.
        workers: Processes that generate; unless given one per core, at most 3, where there is much to do. The rows are
            the same.
        out_file: HDF5 file to write.
        overwrite: Replace a file that is there already.
    """
    from functools import partial

    from mocoda.augmentation.request import REWARD, Request, dynamics_in
    from mocoda.augmentation.streaming import FINISHED, UNFINISHED, augment_to_file, workers_for
    from mocoda.engine.checkpoint import fingerprint
    from mocoda.engine.runs import RunFolder

    request = Request(
        data=str(data),
        graph=None if graph is None else str(graph),
        task=task,
        recipe=recipe,
        architecture=architecture,
        model=None if model is None else str(model),
        rows=rows,
        seed=seed,
        device=device,
        keep_recorded=keep_recorded,
        stratified=stratified,
        reward=reward,
        hindsight=hindsight,
        provenance=provenance,
        max_disagreement=max_disagreement,
        min_support=min_support,
    )
    request.check()
    check_device(device)
    check_target(out_file, inputs=[data], overwrite=True)
    if model is not None and beside(out_file).resolve() in (model.resolve(), model.resolve().parent):
        raise InputError(f"--model lies where this run of {str(out_file)!r} is to be noted; choose another --out.")
    count = workers_for(rows, device) if workers is None else workers
    if count and device != "cpu":
        raise InputError(f"workers share the CPU, and {device} is one device: leave --workers away.")
    recorded = request.recorded()
    world = request.world(recorded)
    labelled = request.labelled_by(recorded, world)
    request.hints(world)
    settings = {**vars(request), "content": content(recorded), "text": getattr(world, "fingerprint", None)}
    if model is not None:
        settings["weights"] = fingerprint(*dynamics_in(model, world.graph).weights.values())
    outputs = (REWARD, UNFINISHED, FINISHED)
    with RunFolder(beside(out_file), "augment", settings, outputs, overwrite, target=out_file) as run:
        request.fit(recorded, run.path, run.progress)
        if labelled == "learned":
            from mocoda.augmentation.rewards import LearnedReward

            say(f"Rewards are learned from the data's own: {LearnedReward.load(run.path / REWARD).in_words}")
        source = augment_to_file(
            out_file, partial(request.plan, run.path), folder=run.path, workers=count, progress=run.progress
        )
    total = len(recorded) * keep_recorded + rows
    say(f"{out_file}: {total:,} transitions, {rows:,} of them new by recipe {recipe}")
    if labelled == "none":
        why = "none was asked for" if reward else "neither the data nor the graph file has any"
        say(f"No row has a reward: {why}.")
    if "filter" in source:
        say(f"The filters let {100 * source['filter']['accepted_share']:.3g}% of the rows drawn pass.")


def graph(
    graph_file: Positional[Path],
    data: str,
    out_file: Annotated[Path, arg(name="out")] = Path("graph.png"),
) -> None:
    """Draw a graph file over its data: who listens to whom, and in which share of the rows.

    Args:
        graph_file: Python (which is run) or TOML.
        data: What the graph is about: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0
        out_file: PNG file to write.
    """
    from mocoda.data.formats import read
    from mocoda.graph.figure import dependency_table, draw_graph
    from mocoda.graph.graph_file import load_graph

    check_writable(out_file)
    recorded = read(data)
    loaded = load_graph(graph_file, recorded)
    title = f"{graph_file.name}, over {len(recorded):,} rows of {Path(data).name}"
    draw_graph(loaded, out_file, recorded.rows, title)
    out.print(dependency_table(loaded, loaded.shares(recorded.rows)))
    say(f"Modelled together: {'; '.join(', '.join(group) for group in loaded.parent_sets)}")
    say(f"Drawn: {out_file}")


def check(
    data: Positional[str],
    graph: Path | None = None,
    task: str | None = None,
    seed: int = 0,
    device: str = "cpu",
    out_dir: Annotated[Path, arg(name="out")] = Path("runs/check"),
    overwrite: bool = False,
) -> None:
    """Tell whether data bears a graph, which edges it lacks, and which recipe is worth trying.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0
        graph: File that says who listens to whom, Python (which is run) or TOML.
        task: Instead, the task that the data is of: navigation, hooksweep2 or objects (objects:6 for six of them). Data
            recorded by mocoda says so itself.
        seed: Same seed, same advice.
        device: cpu or cuda.
        out_dir: Folder for advice.json and advice.png.
        overwrite: Replace what another command, or this one with other settings, has written there.
    """
    from mocoda.analysis import graph_check as advisor
    from mocoda.analysis.figure import draw_advice
    from mocoda.augmentation.request import check_world, world_of
    from mocoda.data.formats import read
    from mocoda.engine.runs import RunFolder

    check_world(graph, task)
    check_device(device)
    recorded = read(data).to(device)
    world = world_of(recorded, data, graph, task)
    settings = {"data": data, "graph": None if graph is None else str(graph), "task": task, "seed": seed}
    settings |= {"content": content(recorded), "text": getattr(world, "fingerprint", None), "device": device}
    with RunFolder(out_dir, "check", settings, ("advice.json", "advice.png"), overwrite) as run:
        advice = advisor.check(recorded, world.graph, task=world, seed=seed, progress=run.progress)
        write_json(out_dir / "advice.json", advice.to_json())
        draw_advice(advice, out_dir / "advice.png")
    out.print(advice)
    say(f"Written to {out_dir / 'advice.json'}; drawn: {out_dir / 'advice.png'}")


def whatif(
    data: Positional[str],
    row: int,
    change: tuple[str, ...],
    resample: tuple[str, ...] = (),
    graph: Path | None = None,
    task: str | None = None,
    architecture: str = "local",
    model: Path | None = None,
    stratified: bool = False,
    least_support: float = 0.01,
    seed: int = 0,
    device: str = "cpu",
    out_dir: Annotated[Path, arg(name="out")] = Path("runs/whatif"),
    overwrite: bool = False,
) -> None:
    """Ask what would have happened in a recorded step had some of its parents been different.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0
        row: The step's number in it, counted from 0.
        change: Factors and their values, such as y=0.3 or, for one of several columns, cup=0.1,0.2
        resample: Factors to draw given all the others; the rest stays as it was.
        graph: File that says who listens to whom, Python (which is run) or TOML.
        task: Instead, the task that the data is of: navigation, hooksweep2 or objects (objects:6 for six of them). Data
            recorded by mocoda says so itself.
        architecture: full, global or local
        model: Ask the dynamics of an earlier run, such as augmented.hdf5.run, instead of training some.
        stratified: Judge the question by what was recorded where its own local graph holds.
        least_support: The least share of the data that must be as rare as the question; 0 answers anything.
        seed: Same seed, same answer.
        device: cpu or cuda.
        out_dir: Folder that keeps the fitted model: a second question about the same data is answered at once.
        overwrite: Replace what another command, or this one with other settings, has written there.
    """
    from mocoda.analysis.counterfactual import what_if
    from mocoda.augmentation.request import check_world, dynamics_in, fit_in, world_of
    from mocoda.data.formats import read
    from mocoda.dynamics.mechanisms import ARCHITECTURES
    from mocoda.engine.runs import RunFolder
    from mocoda.parents import Mocoda, fit_parents

    check_world(graph, task)
    changes = dict(map(_changed, change))
    if architecture not in ARCHITECTURES:
        raise unknown_name("architecture", architecture, ARCHITECTURES)
    check_device(device)
    recorded = read(data).to(device)
    world = world_of(recorded, data, graph, task)
    for name in (*changes, *resample):
        if name not in world.graph.factors:
            raise unknown_name("factor", name, world.graph.factors)
    if not 0 <= row < len(recorded):
        raise InputError(f"row must be a row of {data!r}, from 0 to {len(recorded) - 1}, got {row}.")
    settings = {
        "graph": None if graph is None else str(graph),
        "task": task,
        "architecture": architecture,
        "seed": seed,
        "device": device,
        "content": content(recorded),
        "text": getattr(world, "fingerprint", None),
    }
    if model is None:
        with RunFolder(out_dir, "whatif", settings, overwrite=overwrite) as run:
            fit_in(run.path, recorded, world.graph, architecture, seed, run.progress)
    out.print(
        what_if(
            recorded[row : row + 1],
            changes,
            parents=fit_parents(recorded, world.graph, Mocoda(stratified=stratified), seed=seed),
            model=dynamics_in(model or out_dir, world.graph).to(device),
            graph=world.graph,
            resample=resample,
            data=recorded,
            least_support=least_support,
            seed=seed,
        )
    )


def export(
    data: Positional[str],
    to: str,
    episode_steps: int | None = None,
    skip_bad_rows: bool = False,
) -> None:
    """Write data as something else, or a policy as ONNX.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0; or a policy's file, or its
            folder if it is the only one in it.
        to: FILE.hdf5, d4rl:FILE.hdf5, FILE.npz, FILE.parquet, minari:NAMESPACE/NAME-v0 or d3rlpy:FILE.h5; for a
            policy, FILE.onnx
        episode_steps: Rows of an episode, where the data has no next states and does not mark ends.
        skip_bad_rows: Leave out rows with NaN or infinite numbers.
    """
    if to.endswith(".onnx"):
        if episode_steps is not None or skip_bad_rows:
            raise InputError("--episode-steps and --skip-bad-rows are about data, and an .onnx file is of a policy.")
        return _export_policy(data, to)
    from mocoda.data.formats import read, target_of, write

    target_of(to)
    table = read(data, episode_steps=episode_steps, skip_bad_rows=skip_bad_rows)
    write(table, to)
    say(f"{to}: {len(table):,} transitions")


def _changed(words: str) -> tuple[str, list[float]]:
    """A factor and its values from name=value or name=value,value."""
    name, _, values = words.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError:
        raise InputError(f"a change is a factor and its values, such as y=0.3 or cup=0.1,0.2, got {words!r}.") from None


def _export_policy(source: str, to: str) -> None:
    from mocoda.agents.onnx_export import export_onnx
    from mocoda.agents.policy import Policies, Policy

    check_writable(to)
    if Path(source).is_dir():
        policies = Policies.load(source)
        if len(policies) != 1:
            raise InputError(
                f"{source!r} holds {len(policies)} policies: name the file of one, policy-DATA-SEED.safetensors."
            )
        policy = next(iter(policies.values()))
    else:
        policy = Policy.load(source)
    export_onnx(policy, to)
    noise = " and noise" * (policy.agent.name == "bcq")
    say(f"{to}: {policy.agent.name}, observation{noise} in, action out")
