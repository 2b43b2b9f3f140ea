"""a device -> how fast the pieces are, each beside its reference or its target, in one run."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import rich.table
import torch
from torch import Tensor

from mocoda.augmentation import augment, augment_chunks
from mocoda.density import kernel_density
from mocoda.dynamics import Dynamics, DynamicsConfig, fit_dynamics
from mocoda.files import InputError, versions
from mocoda.mixture import GaussianMixture
from mocoda.parents import Parents, fit_parents
from mocoda.randomness import Stream
from mocoda.statistics import mean_and_std
from mocoda.tasks import Task, make_task
from mocoda.training import device_name
from mocoda.transitions import Transitions, save_stream

EM_POINTS, EM_COLUMNS, EM_COMPONENTS, EM_ITERATIONS = 200_000, 15, 32, 20
KDE_POINTS, KDE_PROPOSALS, KDE_BANDWIDTH = 10_000, 100_000, 0.05
TARGETS = {
    "cpu": {"em": 1.0, "kde": 3.0, "generate": 100_000.0, "growth": 1.0, "memory": 2.0},
    "cuda": {"em": 30.0, "kde": 3.0, "generate": 10_000_000.0, "growth": 1.0, "memory": 2.0},
}
MEANING = {
    "em": f"EM, {EM_COMPONENTS} full components, {EM_POINTS:,} × {EM_COLUMNS}, {EM_ITERATIONS} rounds: times faster",
    "kde": f"KDE of {KDE_PROPOSALS:,} rows over {KDE_POINTS:,} points: times faster",
    "generate": "MoCoDA rows per second, parents to labelled transition",
    "growth": "time per row at 10⁴ rows over time per row at 10⁶ (1 or more: no worse than linear)",
    "memory": "weight of 4·10⁶ rows over the memory it takes to stream them to disk (held at once: under 1)",
}


def measure(device: str, announce: Callable[[str], None] = lambda name: None, repeats: int = 3) -> dict[str, Any]:
    """All benchmarks, in the schema of every results file; `values` holds the repeats."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise InputError("mocoda bench compares with scikit-learn; pip install 'mocoda[bench]'.") from error
    started = time.monotonic()
    cells: list[dict[str, Any]] = []

    def record(row: str, ratios: list[float], ours: list[float], reference: list[float] | None = None) -> None:
        target = TARGETS["cuda" if device.startswith("cuda") else "cpu"][row]
        for column, values in (("ratio", ratios), ("mocoda", ours), ("scikit-learn", reference), ("target", [target])):
            if values is not None:
                mean, std = mean_and_std(values)
                cell = {"row": row, "column": column, "values": values, "mean": mean, "std": std}
                cells.append(cell | {"paper_mean": None, "paper_std": None})

    for row, ours, theirs in (("em", *_em(device)), ("kde", *_kde(device))):
        announce(MEANING[row])
        mine = [_seconds(ours, device) for _ in range(repeats)]
        reference = [_seconds(theirs, "cpu")]
        record(row, [reference[0] / seconds for seconds in mine], mine, reference)
    announce(MEANING["generate"])
    task, data, parents, model = _generator(device)

    def generate(rows: int) -> float:
        return _seconds(lambda: augment(data, parents, model, rows=rows, task=task, keep_recorded=False), device)

    many = 500_000 if device == "cpu" else 20_000_000
    generate(many // 10)  # warm-up
    rates = [many / generate(many) for _ in range(repeats)]
    record("generate", rates, rates)
    announce(MEANING["growth"])
    # The least of several, and in turns: what else the machine does is no part of the law.
    small, large = [], []
    for _ in range(2 * repeats):
        small += [generate(10_000) / 10_000 for _ in range(3)]
        large.append(generate(1_000_000) / 1_000_000)
    record("growth", [min(small) / min(large)], [min(large)])
    announce(MEANING["memory"])
    if Path("/proc/self/clear_refs").exists():  # Linux
        rows, bytes_per_row = 4_000_000, 4 * 7 + 1
        needed = _streaming_memory(rows, device)
        record("memory", [rows * bytes_per_row / 2**20 / needed], [needed])
    return {
        "table": "bench",
        "preset": "bench",
        "metric": "ratio as the row says; mocoda and scikit-learn in seconds (generate: rows per second; "
        "growth: seconds per row; memory: MB)",
        "device": device_name(device),
        "seconds": round(time.monotonic() - started, 1),
        "versions": versions(),
        "config": {"meaning": MEANING, "repeats": repeats, "reference threads": torch.get_num_threads()},
        "cells": cells,
    }


def as_table(results: dict[str, Any]) -> rich.table.Table:
    """What was measured beside its target; the law of growth holds within a tenth, the rest outright."""
    table = rich.table.Table(title=f"mocoda bench on {results['device']}")
    for column in ("what", "measured", "target", ""):
        table.add_column(column, justify="left" if column == "what" else "right")
    means = {(cell["row"], cell["column"]): cell["mean"] for cell in results["cells"]}
    for row, meaning in MEANING.items():
        if (row, "ratio") in means:
            measured, target = means[row, "ratio"], means[row, "target"]
            met = measured >= target * (0.9 if row == "growth" else 1.0)
            table.add_row(meaning, f"{measured:,.2f}", f"{target:,.0f}", "met" if met else "missed")
    return table


def _seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _em(device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Ours and scikit-learn's, each from its own start, for the same number of rounds."""
    stream = Stream(0, "bench-em")
    centres = 3 * stream.normal(EM_COMPONENTS, EM_COLUMNS)
    mixing = stream.normal(EM_COMPONENTS, EM_COLUMNS, EM_COLUMNS) / 3
    component = stream.integers(EM_COMPONENTS, EM_POINTS)
    noise = stream.normal(EM_POINTS, EM_COLUMNS, 1)
    points = torch.cat(
        [(mixing[c] @ n)[..., 0] for c, n in zip(component.split(20_000), noise.split(20_000), strict=True)]
    )
    points = (points + centres[component]).to(device)

    def ours() -> GaussianMixture:
        return GaussianMixture.fit(points, EM_COMPONENTS, tolerance=-float("inf"), max_iterations=EM_ITERATIONS)

    def theirs() -> object:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture as Reference

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # it is to stop early
            return Reference(EM_COMPONENTS, tol=0.0, max_iter=EM_ITERATIONS, random_state=0).fit(points.cpu().numpy())

    ours()  # warm-up
    return ours, theirs


def _kde(device: str) -> tuple[Callable[[], object], Callable[[], object]]:
    stream = Stream(0, "bench-kde", device=device)
    points, proposals = stream.uniform(KDE_POINTS, 2), stream.uniform(KDE_PROPOSALS, 2)

    def ours() -> Tensor:
        return kernel_density(points, proposals, KDE_BANDWIDTH)

    def theirs() -> object:
        from sklearn.neighbors import KernelDensity

        return KernelDensity(bandwidth=KDE_BANDWIDTH).fit(points.cpu().numpy()).score_samples(proposals.cpu().numpy())

    ours()  # warm-up
    return ours, theirs


def _generator(device: str) -> tuple[Task, Transitions, Parents, Dynamics]:
    """Everything `augment` needs, with the default networks; how long they trained does not change their speed."""
    task = make_task("navigation")
    data = task.collect(40_000, seed=0).to(device)
    model = fit_dynamics(data, task.graph, seed=0, config=DynamicsConfig(epochs=1, window=1))
    return task, data, fit_parents(data, task.graph, seed=0), model


def _streaming_memory(rows: int, device: str) -> float:
    """Megabytes that a fresh process needs on top, at its peak, to stream `rows` generated rows to disk."""
    *_, model = _generator(device)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "dynamics.safetensors"
        model.save(saved)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_stream_to_disk, args=(rows, device, saved, there))
        process.start()
        there.close()  # so that a child that dies is noticed
        needed: float = here.recv()
        process.join()
    return needed


def _stream_to_disk(rows: int, device: str, saved: Path, answer: Connection) -> None:
    task = make_task("navigation")
    data = task.collect(40_000, seed=0).to(device)
    model, parents = Dynamics.load(saved, task.graph).to(device), fit_parents(data, task.graph, seed=0)
    augment(data, parents, model, rows=1_000, task=task)  # so that nothing is loaded or allocated for the first time
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _resident("VmRSS")
    save_stream(saved.with_name("rows.hdf5"), augment_chunks(data, parents, model, rows=rows, task=task))
    answer.send(_resident("VmHWM") - before)


def _resident(key: str) -> float:
    """Megabytes of this process by Linux's own account: VmRSS now, VmHWM at the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024
