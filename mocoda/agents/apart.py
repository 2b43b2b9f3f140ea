"""Agents that are trained apart, each as a job of an engine; the policies are those of `train_agents`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mocoda.agents.agent import Agent
from mocoda.agents.batches import runs_of
from mocoda.agents.policy import Policies
from mocoda.agents.train import train_agents
from mocoda.data.transitions import Transitions
from mocoda.engine.engines import Engine
from mocoda.engine.files import announce
from mocoda.engine.metrics import CSV, JSONL, MetricLog, Report, read_metrics
from mocoda.engine.progress import Progress, silent

APART = "apart"  # the folder of what is trained apart, a folder each
CHECKPOINT = "checkpoint.safetensors"


def train_apart(
    datasets: Mapping[str, Transitions | Sequence[Transitions]],
    agent: Agent,
    *,
    seeds: Sequence[int],
    folder: Path,
    engine: Engine,
    report: Report | None = None,
    progress: Progress = silent,
    **options: Any,
) -> Policies:
    """What `train_agents` returns, an agent a job; a second call with the same folder trains those that are missing.

    folder   keeps finished agents and checkpoints, where all machines see it; `remove_apart` clears it
    report   is called with an agent's metrics when it is finished
    options  of train_agents
    """
    runs = [(run.name, run.seed, run.data) for run in runs_of(datasets, list(seeds), agent)]
    device = runs[0][2].device
    tables = {id(data): data.to("cpu") for *_, data in runs}  # seeds may share one
    work = _Training([tables[id(data)] for *_, data in runs], agent, folder, str(device), {**options, "workers": 0})
    jobs = [_Job(name, seed, place) for place, (name, seed, _) in enumerate(runs)]
    for job in jobs:
        for file in _files(folder, job):
            announce(file)
    for done, job in enumerate(_finished(jobs, work, engine)):
        progress(f"agents {agent.name}", done + 1, len(jobs))
        if report is not None:
            report(read_metrics(_part(folder, job)))
    parts = [Policies.load(_part(folder, job), agent) for job in jobs]
    policies = {key: policy for part in parts for key, policy in part.items()}
    curves = {
        name: curve if name == "updates" else torch.cat([part.curves[name] for part in parts])
        for name, curve in parts[0].curves.items()
    }
    return Policies(policies, curves).to(device)


def remove_apart(folder: Path) -> None:
    """Removes what `train_apart` has kept in the folder."""
    for part in (folder / APART).glob("*"):
        for name in ("agents.json", CHECKPOINT, JSONL, CSV, f"policy-{part.name}.safetensors"):
            (part / name).unlink(missing_ok=True)
        if not any(part.iterdir()):
            part.rmdir()
    if (folder / APART).exists() and not any((folder / APART).iterdir()):
        (folder / APART).rmdir()


@dataclass(frozen=True)
class _Job:
    """One agent: the name of its data set, its seed, and the place of its data among those of all agents."""

    name: str
    seed: int
    place: int


@dataclass(frozen=True, eq=False)
class _Training:
    """What a process does: train an agent, unless that is done."""

    data: list[Transitions]
    agent: Agent
    folder: Path
    device: str
    options: Mapping[str, Any]

    def __call__(self, job: _Job) -> None:
        part = _part(self.folder, job)
        if not (part / "agents.json").exists():
            train_agents(
                {job.name: self.data[job.place].to(self.device)},
                self.agent,
                seeds=[job.seed],
                checkpoint=part / CHECKPOINT,
                report=MetricLog(part).add,
                **self.options,
            ).save(part)


def _finished(jobs: Sequence[_Job], work: _Training, engine: Engine) -> Iterator[_Job]:
    """The jobs: those that an earlier call has done, and the others as they are done."""
    todo = [job for job in jobs if not (_part(work.folder, job) / "agents.json").exists()]
    yield from (job for job in jobs if job not in todo)
    for job, _ in engine.run(work, todo):
        yield job


def _part(folder: Path, job: _Job) -> Path:
    return folder / APART / f"{job.name}-{job.seed}"


def _files(folder: Path, job: _Job) -> list[Path]:
    part = _part(folder, job)
    return [part / name for name in ("agents.json", CHECKPOINT, JSONL, CSV, f"policy-{part.name}.safetensors")]
