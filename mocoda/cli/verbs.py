"""words -> work: one verb per stage. Everything heavy is imported by the verb that needs it, so help comes at once."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import rich.console
import tyro
from rich.text import Text
from tyro.conf import Positional, arg

from mocoda.cli.console import beside, check_device, content, out, say
from mocoda.cli.data import augment, check, export, graph, whatif
from mocoda.cli.data import inspect as inspect_data
from mocoda.engine.errors import InputError, file_error
from mocoda.engine.files import check_writable, discard_unfinished, write_json

if TYPE_CHECKING:
    from mocoda.agents.policy import Policy
    from mocoda.paper import Experiment, Measured

M = TypeVar("M", bound="Measured")


def demo(out_dir: Annotated[Path, arg(name="out")] = Path("runs/demo"), device: str = "cpu") -> None:
    """The whole method in minutes: data, MoCoDA, small Tables 1 and 2, and agents that cut the corner.

    Args:
        out_dir: Folder for the augmented data, the tables and the figures.
        device: cpu or cuda.
    """
    check_device(device)
    from mocoda.augmentation.generation import Augmentation
    from mocoda.data.transitions import save_stream
    from mocoda.engine.runs import RunFolder
    from mocoda.graph.figure import draw_graph
    from mocoda.paper.table1 import Table1
    from mocoda.paper.table2 import Table2, draw_walks, walk

    first = _run(Table1.presets["quick"], out_dir, device)
    data, parents, model = first.datasets[0], first.parents["mocoda"][0], first.models["local"][0]
    file, rows = out_dir / "navigation-mocoda.hdf5", 160_000
    with RunFolder.reopen(out_dir) as run:
        save_stream(file, Augmentation(data, parents, model, rows=rows, task=first.task, seed=0).chunks(run.progress))
        draw_graph(first.task.graph, out_dir / "graph.png", data.rows)
    say(f"{len(data):,} recorded transitions and {rows:,} counterfactual ones after them: {file}")
    say(f"Who listens to whom, and where: {out_dir}/graph.png")
    second = _run(Table2.presets["quick"], out_dir / "agents", device, models=first.models["local"])
    walked = walk(second, ("emp", "mocoda"))["td3-bc"]
    titles = {"emp": "trained on the recorded data", "mocoda": "trained on MoCoDA's data"}
    with RunFolder.reopen(out_dir):
        draw_walks({titles[name]: path for name, path in walked.items()}, out_dir / "walks.png", data.state)
    say(f"What all this is for: {out_dir}/walks.png")


def collect(
    task: Positional[str],
    rows: int = 40_000,
    seed: int = 0,
    variety: str | None = None,
    workers: int | None = None,
    out_file: Annotated[Path, arg(name="out")] = Path("data.hdf5"),
    overwrite: bool = False,
) -> None:
    """Record a task's data.

    Args:
        task: navigation, hooksweep2 or objects (objects:6 for six of them)
        rows: Transitions to record.
        seed: Same seed, same rows.
        variety: hooksweep2 only: varied (unless given) or plain, how the expert sweeps.
        workers: hooksweep2 only: how many processes simulate, one per core unless given. The rows are the same.
        out_file: HDF5 file to write.
        overwrite: Replace a file that is there already.
    """
    from mocoda.engine.runs import RunFolder
    from mocoda.tasks import make_task

    chosen = make_task(task)
    takes = inspect.signature(chosen.collect).parameters
    for name, value in (("variety", variety), ("workers", workers)):
        if value is not None and name not in takes:
            raise InputError(f"the task {task!r} is recorded in one way and one process: leave --{name} away.")
    check_writable(out_file)
    chosen_variety = {} if variety is None else {"variety": variety}
    settings = {"task": task, "rows": rows, "seed": seed, **chosen_variety}
    with RunFolder(beside(out_file), "collect", settings, overwrite=overwrite, target=out_file) as run:
        parts = run.path / "parts"
        simulating = {"workers": workers, "folder": parts, "progress": run.progress}
        options = {name: value for name, value in simulating.items() if name in takes}
        data = chosen.collect(rows, seed=seed, **chosen_variety, **options)
        data.save(out_file)
        run.discard("parts")
        run.progress("collect", rows, rows)
    say(f"{out_file}: {data!r}")


def train(
    data: Positional[list[str]],
    task: str | None = None,
    actions: tuple[float, float] | None = None,
    agent: str = "td3-bc",
    seeds: int = 5,
    updates: int = 25_000,
    evaluate_every: int = 100,
    hidden: tuple[int, ...] = (512, 512),
    batch: int = 500,
    standardise: bool = False,
    workers: int | None = None,
    tensorboard: bool = False,
    device: str = "cpu",
    out_dir: Annotated[Path, arg(name="out")] = Path("runs/agents"),
    overwrite: bool = False,
) -> None:
    """Train an agent per data set and seed, all as one program.

    Args:
        data: HDF5 (ours or in D4RL's layout), npz, Parquet, or minari:NAMESPACE/NAME-v0; each is called by its file's
            name.
        task: Evaluates the agents while they train: navigation, hooksweep2 or objects (objects:6 for six of them). Data
            recorded by mocoda says so itself; agents of any other data are not evaluated.
        actions: Without a task: the lowest and the highest action that is possible, in every column; -1 1 unless given.
        agent: td3-bc, bcq, cql or sac
        seeds: How many seeds, counted from 0.
        updates: Gradient steps of each agent.
        evaluate_every: Gradient steps between evaluations.
        hidden: Widths of the hidden layers.
        batch: Rows of each gradient step.
        standardise: Let networks see states of mean 0 and variance 1.
        workers: Processes that evaluate in the task's simulator, where it has one; one per core unless given.
        tensorboard: Write what is measured for TensorBoard too, beside metrics.csv and metrics.jsonl.
        device: cpu or cuda.
        out_dir: Folder for the policies and what is measured on the way.
        overwrite: Replace what another command, or this one with other settings, has written there.
    """
    from mocoda.agents.agent import make_agent
    from mocoda.agents.train import train_agents
    from mocoda.augmentation.request import check_world, recorded_in
    from mocoda.data.formats import read
    from mocoda.engine.metrics import MetricLog, check_tensorboard
    from mocoda.engine.runs import RunFolder
    from mocoda.tasks import make_task

    check_world(None, task)
    learner = make_agent(agent, hidden=hidden, batch=batch, standardise=standardise)
    if seeds < 1:
        raise InputError(f"seeds must be at least 1, got {seeds}.")
    if updates < 1:
        raise InputError(f"updates must be at least 1, got {updates}.")
    if not data:
        raise InputError("there is nothing to train on: name at least one file of transitions.")
    names = [Path(file.rpartition(":")[2]).stem for file in data]
    if len(set(names)) != len(names):
        raise InputError(f"data sets are called by their files' names, which must differ, got {', '.join(names)}.")
    check_device(device)
    if tensorboard:
        check_tensorboard()
    datasets = {name: read(file).to(device) for name, file in zip(names, data, strict=True)}
    if task is None:
        said = {name: recorded_in(table) for name, table in datasets.items()}
        if len(set(said.values())) > 1:
            each = ", ".join(f"{name!r} of {of or 'none of ours'}" for name, of in said.items())
            raise InputError(f"these data sets are not of one task: {each}. Say which with --task.")
        task = next(iter(said.values()))
    settings: dict[str, Any] = {
        "task": task,
        "agent": agent,
        "seeds": seeds,
        "updates": updates,
        "hidden": hidden,
        "batch": batch,
    }
    settings |= {"evaluate_every": evaluate_every, "standardise": standardise, "device": device}
    settings |= {} if actions is None else {"actions": actions}
    settings |= {"data": {name: content(d) for name, d in datasets.items()}}
    policies = [f"policy-{name}-{seed}.safetensors" for name in names for seed in range(seeds)]
    outputs = ["agents.json", "checkpoint.safetensors", "metrics.jsonl", "metrics.csv", *policies]
    with RunFolder(out_dir, "train", settings, outputs, overwrite) as run:
        metrics = MetricLog(out_dir, tensorboard=tensorboard)
        if not (out_dir / "agents.json").exists():  # else the same command has done it all
            checkpoint = out_dir / "checkpoint.safetensors"
            train_agents(
                datasets,
                learner,
                seeds=range(seeds),
                updates=updates,
                task=None if task is None else make_task(task),
                actions=actions,
                evaluate_every=evaluate_every,
                workers=workers,
                checkpoint=checkpoint,
                report=metrics.add,
                progress=run.progress,
            ).save(out_dir)
            checkpoint.unlink(missing_ok=True)
    count = len(datasets) * seeds
    then = f"`mocoda evaluate {out_dir}` tells how they do"
    if task is None:
        then = "without a task none was evaluated. `mocoda export POLICY --to policy.onnx` takes one along"
    say(f"{count} agent{'s' * (count != 1)} in {out_dir}; {then}")


def evaluate(
    folder: Positional[Path],
    episodes: int = 50,
    seed: int = 0,
    device: str = "cpu",
) -> None:
    """Let trained agents solve their task, all from the same starts.

    Args:
        folder: What `mocoda train` wrote.
        episodes: Starts of every agent.
        seed: Same seed, same starts.
        device: cpu or cuda.
    """
    check_device(device)
    from mocoda.agents import evaluation
    from mocoda.agents.policy import Policies
    from mocoda.engine.runs import RunFolder, settings_of
    from mocoda.tasks import make_task

    policies = Policies.load(folder).to(device)
    task = settings_of(folder)["task"]
    if task is None:
        raise InputError(f"the agents in {str(folder)!r} were trained without a task, and there is none to solve.")
    results = evaluation.evaluate(policies, make_task(task), episodes=episodes, seed=seed)
    out.print(results)
    with RunFolder.reopen(folder):
        write_json(folder / "evaluation.json", {**results.to_json(), "seed": seed})
    say(f"Every agent's figures: {folder / 'evaluation.json'}")


def watch(
    who: Positional[str],
    task: str = "hooksweep2",
    episodes: int = 3,
    seed: int = 0,
    data: str | None = None,
    agent_seed: int | None = None,
    out_file: Annotated[Path, arg(name="out")] = Path("sweep.mp4"),
) -> None:
    """Film a trained agent, or the scripted expert, at its task.

    Args:
        who: A folder that `mocoda train` wrote, a policy's file in it, or the word expert.
        task: One whose environment draws pictures: hooksweep2
        episodes: Shown one after the other.
        seed: Same seed, same starts.
        data: In a folder: the agent trained on this data set, the first unless given.
        agent_seed: In a folder: the agent trained with this seed, the first unless given.
        out_file: Video to write, .mp4 or .gif.
    """
    if sys.platform == "linux" and "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")  # draws without a screen; has to be known before mujoco is imported
    from mocoda.agents.film import film
    from mocoda.tasks import make_task

    check_writable(out_file)
    name, policy = _filmed(who, data, agent_seed)
    successes = film(out_file, make_task(task), policy, episodes=episodes, seed=seed)
    say(f"{out_file}: {name}, {successes} of {episodes} episode{'s' * (episodes != 1)} successful")


def paper(
    table: Positional[str],
    preset: str = "quick",
    seeds: int | None = None,
    device: str = "cpu",
    predict_change: bool | None = None,
    standardise: bool | None = None,
    columns: tuple[str, ...] | None = None,
    published_code: bool | None = None,
    stratified: bool | None = None,
    workers: int | None = None,
    out_dir: Annotated[Path | None, arg(name="out")] = None,
) -> None:
    """Measure a table of the paper, or something else it says, and draw the figures.

    Args:
        table: table1 (how far off the dynamics are), table2 (how fast the agents are), table3 (who sweeps two boxes),
            scarcity (table3 by the number of recorded rows), theory (samples that counting needs), neighbourhoods
            (parents per local graph), reweighting (of components, against rejection), whatif (counterfactuals),
            entanglement (of steps over the horizon) or composer (one network for all children)
        preset: quick (minutes on 2 cores) or paper (its sizes and epochs; meant for a GPU)
        seeds: How many seeds, counted from 0; the preset says so unless given.
        device: cpu or cuda.
        predict_change: Let the networks predict next state minus state (all presets do) or the next state.
        standardise: Scale inputs and targets of the dynamics, or leave them as they are (table1's paper preset does).
        columns: table2 and table3: the data sets, all of the preset's unless given.
        published_code: table2: draw parents as the paper's code does rather than its text.
        stratified: table2: fit mixtures per local graph (Appendix B.2), which the paper's table does without.
        workers: table3 and scarcity: processes that simulate; one per core unless given.
        out_dir: Folder to write; runs/TABLE-PRESET unless given.
    """
    from mocoda.paper import find_experiment

    given = {
        "seeds": seeds,
        "columns": columns,
        "published_code": published_code,
        "stratified": stratified,
        "predict_change": predict_change,
        "standardise": standardise,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    experiment = find_experiment(table, preset, **changes)
    check_device(device)
    _run(experiment, out_dir or Path(f"runs/{table}-{preset}"), device, workers=workers)


def bench(device: str = "cpu", out_file: Annotated[Path, arg(name="out")] = Path("runs/bench.json")) -> None:
    """Time the pieces against scikit-learn and against their targets, in one run.

    Args:
        device: cpu or cuda.
        out_file: JSON file to write, such as results/bench-cpu.json.
    """
    check_device(device)
    check_writable(out_file)
    from mocoda.paper.bench import as_table, measure

    results = measure(device, lambda name: say(f"timing {name} …"))
    out.print(as_table(results))
    write_json(out_file, results)
    say(f"Written to {out_file}")


def main() -> None:
    """The command line; bad input ends in one line and exit code 2."""
    signal.signal(signal.SIGTERM, _terminate)
    verbs: dict[str, Callable[..., None]] = {
        "demo": demo,
        "collect": collect,
        "inspect": inspect_data,
        "graph": graph,
        "check": check,
        "augment": augment,
        "export": export,
        "train": train,
        "evaluate": evaluate,
        "whatif": whatif,
        "watch": watch,
        "paper": paper,
        "bench": bench,
    }
    description = "Model-based counterfactual data augmentation: recorded transitions in, unseen ones out."
    try:
        tyro.extras.subcommand_cli_from_dict(verbs, prog="mocoda", description=description)
    except InputError as error:
        _complain(str(error))
        sys.exit(2)
    except OSError as error:
        _complain(file_error(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(sentence: str) -> None:
    rich.console.Console(stderr=True).print(Text("error: ", "red").append(sentence, "default"), soft_wrap=True)


def _terminate(number: int, frame: object) -> None:
    """Ends at once: an exception could be raised where nobody passes it on, in a library's callback, say."""
    discard_unfinished()
    os._exit(128 + number)


def _run(experiment: Experiment[M], folder: Path, device: str, **given: Any) -> M:
    """Runs an experiment, prints its table and says where the rest is."""
    from mocoda.paper import run_experiment

    measured, table = run_experiment(experiment, folder, device=device, **given)
    out.print(table)
    results, outputs = measured.results, experiment.outputs
    took = f"{results['seconds']} s{' after resuming' if results.get('resumed') else ''}"
    say(f"Measured in {took} on {results['device']}; cells in {folder / outputs[0]}")
    say(f"Figures: {', '.join(str(folder / name) for name in outputs if name.endswith('.png'))}")
    return measured


def _filmed(who: str, data: str | None, agent_seed: int | None) -> tuple[str, Policy | None]:
    """What to call the one to be filmed, and its policy; None: the expert."""
    from mocoda.agents.policy import Policies, Policy

    if Path(who).is_dir():
        policies = Policies.load(who)
        for key, policy in policies.items():
            if data in (None, key[0]) and agent_seed in (None, key[1]):
                return f"{key[0]}, seed {key[1]}", policy
        raise InputError(f"no agent in {who!r} is of that data and seed; there are: {', '.join(map(str, policies))}.")
    if data is not None or agent_seed is not None:
        raise InputError(f"--data and --agent-seed choose among the agents of a folder, and {who!r} is none.")
    return (who, None) if who == "expert" else (who, Policy.load(who))
