"""Metrics of a training: what is reported, lines that survive kills, and TensorBoard's reading of them."""

from __future__ import annotations

import csv
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from agents_world import HILL, each_rewarded_agent, small
from approved import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from mocoda import MetricLog, Policies, make_task, train_agents
from mocoda.agents import train as learning
from mocoda.cli import read_command
from mocoda.engine.checkpoint import Checkpoint
from mocoda.engine.metrics import Metric

DATA = {"a": HILL.collect(60, seed=0), "b": HILL.collect(70, seed=1)}
KEYS = [(data, seed) for data in DATA for seed in (5, 6)]
SOME = [Metric(1, "a", 0, "success", 0.25), Metric(1, "a", 1, "success", 0.5), Metric(2, "a,ä\n", 0, "return", -1e-7)]


def train(report: Callable[[Sequence[Metric]], None] | None = None, name: str = "td3-bc", **more: Any) -> Policies:
    """Evaluations after 3, 6 and 9 of 10 updates."""
    settings: dict[str, Any] = {"seeds": [5, 6], "updates": 10, "task": HILL, "evaluate_every": 3, "episodes": 4}
    return train_agents(DATA, small(name), report=report, **(settings | more))


def jsonl(folder: Path) -> list[Metric]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [Metric(**json.loads(line)) for line in lines]


def from_csv(folder: Path) -> list[Metric]:
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == Metric._fields
    return [Metric(int(update), data, int(seed), name, float(value)) for update, data, seed, name, value in rows]


def events(folder: Path) -> list[Metric]:
    """What TensorBoard reads, run by run."""
    found = []
    for run in sorted((folder / "tensorboard").iterdir()):
        assert len(list(run.iterdir())) == 1
        read = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
        data, seed = run.name.rsplit("-", 1)
        for name in read.Tags()["scalars"]:
            found += [Metric(event.step, data, int(seed), name, event.value) for event in read.Scalars(name)]
    return found


# What is reported


@each_rewarded_agent
def test_evaluations_are_the_curves(name: str) -> None:
    told: list[Metric] = []
    curves = train(told.extend, name).curves
    for measure in ("steps", "success", "return"):
        expected = [
            Metric(int(update), *key, measure, value)
            for place, update in enumerate(curves["updates"])
            for key, value in zip(KEYS, curves[measure][:, place].tolist(), strict=True)
        ]
        assert [metric for metric in told if metric.name == measure] == expected
    assert curves["updates"].tolist() == [3, 6, 9]


def test_losses_are_means_over_the_updates_that_moved_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(learning, "_check_finite", lambda losses, *rest: seen.append(losses))
    told: list[Metric] = []
    train(told.extend)
    losses = torch.cat(seen)  # (10, critic and actor, R)
    assert (losses[:, 1] == 0).all(1).tolist() == [True, False] * 5  # the actor moves in every second update
    for place, (group, parts) in enumerate(
        {
            "critic": {3: [0, 1, 2], 6: [3, 4, 5], 9: [6, 7, 8], 10: [9]},
            "actor": {3: [1], 6: [3, 5], 9: [7], 10: [9]},
        }.items()
    ):
        found = [metric for metric in told if metric.name == f"loss/{group}"]
        assert [metric[:3] for metric in found] == [(update, *key) for update in parts for key in KEYS]
        expected = torch.cat([losses[rows, place].mean(0) for rows in parts.values()])
        torch.testing.assert_close(torch.tensor([metric.value for metric in found]), expected)


def test_a_continued_training_tells_its_earlier_evaluations_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "Checkpoint", functools.partial(Checkpoint, interval=0.0))

    def stop(stage: str, done: int, total: int) -> None:
        if done == 6:
            raise InterruptedError

    whole: list[Metric] = []
    train(whole.extend)
    first = MetricLog(tmp_path / "log")
    with pytest.raises(InterruptedError):
        train(first.add, checkpoint=tmp_path / "checkpoint", progress=stop)
    assert jsonl(tmp_path / "log") == [metric for metric in whole if metric.update <= 6]
    told: list[Metric] = []
    again = MetricLog(tmp_path / "log")

    def both(metrics: Sequence[Metric]) -> None:
        told.extend(metrics)
        again.add(metrics)

    train(both, checkpoint=tmp_path / "checkpoint")
    assert [metric.update for metric in told if metric[1:4] == ("a", 5, "success")] == [3, 6, 9]
    assert jsonl(tmp_path / "log") == from_csv(tmp_path / "log") == whole


# Files


def test_a_number_is_written_once_whoever_says_it_again(tmp_path: Path) -> None:
    log = MetricLog(tmp_path, tensorboard=True)
    log.add(SOME[:2])
    log.add(SOME)
    MetricLog(tmp_path, tensorboard=True).add([*SOME, Metric(3, "a", 0, "success", 1.0)])
    assert jsonl(tmp_path) == from_csv(tmp_path) == [*SOME, Metric(3, "a", 0, "success", 1.0)]


THIRD = Metric(3, "a", 0, "success", 0.75)


@pytest.mark.parametrize(
    ("lines", "rows"), [('{"update": 3, "da', ""), (json.dumps(THIRD._asdict()) + "\n", "3,a,0,suc")]
)
def test_after_a_kill_the_files_are_sound_and_go_on(lines: str, rows: str, tmp_path: Path) -> None:
    simple = SOME[:2]
    MetricLog(tmp_path, tensorboard=True).add(simple)
    for name, text in (("metrics.jsonl", lines), ("metrics.csv", rows)):
        with (tmp_path / name).open("a") as file:
            file.write(text)
    log = MetricLog(tmp_path, tensorboard=True)
    assert jsonl(tmp_path) == from_csv(tmp_path)
    log.add([THIRD, THIRD._replace(update=4)])
    expected = [*simple, THIRD, THIRD._replace(update=4)]
    assert jsonl(tmp_path) == from_csv(tmp_path) == expected
    assert sorted(events(tmp_path)) == sorted(expected)


@pytest.mark.parametrize("content", ["hello\n", "[1]\n", '{"update": 1}\n'])
def test_a_file_of_something_else_is_refused_and_kept(content: str, tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(content)
    with refused():
        MetricLog(tmp_path)
    assert file.read_text() == content and list(tmp_path.iterdir()) == [file]


# TensorBoard


def test_tensorboard_reads_the_same_numbers_whatever_a_data_set_is_called(tmp_path: Path) -> None:
    odd = [metric._replace(data="../up/and, down") for metric in SOME[:2]]
    MetricLog(tmp_path / "log", tensorboard=True).add(odd)
    assert jsonl(tmp_path / "log") == from_csv(tmp_path / "log") == odd
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert events(tmp_path / "log") == [metric._replace(data=".._up_and, down") for metric in odd]


def test_without_tensorboard_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refused():
        MetricLog(tmp_path, tensorboard=True)


# Folders, and the command line


def test_train_writes_metrics_always_and_events_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_task("navigation").collect(200, seed=0).save("one.hdf5")
    words = "train one.hdf5 --seeds 2 --updates 4 --evaluate-every 2 --hidden 8 --batch 16 --out out"
    read_command(words.split()).run()
    folder, curves = Path("out"), Policies.load("out").curves
    assert jsonl(folder) == from_csv(folder)
    told = [metric.value for metric in jsonl(folder) if metric.name == "return" and metric.seed == 1]
    assert told == curves["return"][1].tolist() and len(told) == 2
    assert not (folder / "tensorboard").exists()
    read_command([*words.split(), "--tensorboard"]).run()  # trains no more
    assert sorted(events(folder)) == sorted(jsonl(folder))
