"""How many rows a machine makes: shards by `mocoda augment`, killed on the way, against the same shards uninterrupted.

The command is run as a user runs it, as another process, which is killed with SIGKILL and started again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from experiments.experiment import Experiment, Run, markdown_table, measured, read_json
from experiments.stages import fit_models, paper_dynamics
from mocoda.data.formats.named_columns import pyarrow_for
from mocoda.data.formats.shard_folder import Manifest, shard_name
from mocoda.dynamics import DynamicsConfig
from mocoda.engine.errors import InputError
from mocoda.engine.figure_style import BLUE, GREY, bare, save, title_left
from mocoda.engine.files import write_json
from mocoda.tasks.navigation import Navigation

BYTES = 30  # of a row at most: 7 numbers, a flag and what Parquet adds
GPU_PROCESSES = 4  # that share a GPU: while some write, another one generates
WATCH = 0.02  # seconds between looks at a process
LISTING = 0.2  # seconds between looks at its memory, which take longer
FILES = {"scale.json": "one H200", "2-cores.json": "2 CPU cores", "16-cores.json": "16 CPU cores"}


@dataclass(frozen=True)
class Scale(Experiment):
    """How many rows of 2D Navigation a machine makes as shards, killed on the way."""

    name = "scale"
    metric = (
        "seconds of wall time from the first start of `mocoda augment` to its end, starts and kills included; the "
        "model was trained before. memory: the most that the command and its processes had in memory at once, in MB. "
        "scaling: rows per second once every process has finished a shard"
    )
    outputs = ("scale.json", "scale.png")

    rows: int = 1_000_000_000
    shards: int = 256
    kills: int = 2
    recorded: int = 40_000
    counts: tuple[int, ...] = (1, 2)  # of processes, each timed
    timed_rows: int = 4_000_000  # of each count and process
    dynamics: DynamicsConfig = field(default_factory=paper_dynamics)

    def __post_init__(self) -> None:
        self.check_positive("seeds", "rows", "shards", "recorded", "timed_rows")
        if not 0 <= self.kills < self.shards:
            raise InputError(f"kills must be a number below that of the shards, {self.shards}, got {self.kills}.")

    def measure(self, run: Run) -> dict[str, Any]:
        """Makes the shards twice, with kills and without, compares their bytes, and times numbers of processes."""
        pyarrow = pyarrow_for("write Parquet files").__version__  # the bytes depend on it
        need, free = BYTES * self.rows, shutil.disk_usage(run.folder).free
        if need > free:
            raise InputError(f"{self.rows:,} rows need {need:,} bytes, and {str(run.folder)!r} has room for {free:,}.")
        task, cores = Navigation(), len(os.sched_getaffinity(0))
        workers = run.workers or (cores if run.device == "cpu" else GPU_PROCESSES)
        data = run.folder / "recorded.hdf5"
        if not data.exists():
            task.collect(self.recorded, seed=0).save(data)
        recorded = task.collect(self.recorded, seed=0).to(run.device)
        fit_models(run, [recorded], task.graph, "local", self.dynamics)
        run.lap("model")
        words = ["augment", str(data), "--model", str(run.folder / "dynamics-local-0.safetensors")]
        words += ["--device", run.device, "--no-provenance", "--no-keep-recorded"]
        runs = {}
        for stage, kills in (("killed", self.kills), ("whole", 0)):
            command = [*words, "--rows", str(self.rows), "--shards", str(self.shards), "--workers", str(workers)]
            runs[stage] = self._stage(stage, command, kills, run)
            run.lap(stage)
        scaling = []
        for count in self.counts:
            rows, shards = self.timed_rows * count, 16 * count
            command = [*words, "--rows", str(rows), "--shards", str(shards), "--workers", str(count)]
            scaling.append({"workers": count, **self._stage(f"workers-{count}", command, 0, run)})
            run.lap(f"workers-{count}")
        same = runs["killed"]["digest"] == runs["whole"]["digest"]
        found = {"workers": workers, "cores": cores, "pyarrow": pyarrow, "same_bytes": same}
        return {**found, "runs": runs, "scaling": scaling}

    def _stage(self, stage: str, command: list[str], kills: int, run: Run) -> Mapping[str, Any]:
        """Makes shards, measures and hashes them, and removes them. A second call knows what the first has measured."""
        note, out = run.folder / f"{stage}.json", run.folder / f"shards-{stage}"
        if note.exists():
            return read_json(note)
        remove_shards(out)
        shards, workers = (int(command[command.index(option) + 1]) for option in ("--shards", "--workers"))
        found = run_killed([*command, "--out", str(out)], out, shards, kills, lambda n: run.progress(stage, n, shards))
        files = [out / shard_name(number) for number in range(shards)]
        size, made = sum(file.stat().st_size for file in files), Manifest.load(out).rows
        found |= {
            "rows": made,
            "rows per second": made / found["seconds"],
            "steady": steady_rate(files, made, workers),
            "bytes per row": size / made,
            "shards": shards,
            "digest": digest_of(files),
        }
        remove_shards(out)
        write_json(note, found)
        return found

    def draw(self, results: Mapping[str, Any], folder: Path) -> None:
        """Draws rows per second by the number of processes, beside the rate of one process times their number."""
        counts = [point["workers"] for point in results["scaling"]]
        rates = [point["steady"] / 1e6 for point in results["scaling"]]
        figure = Figure(figsize=(5, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(counts, [rates[0] * count / counts[0] for count in counts], color=GREY, ls=":", label="in proportion")
        axes.plot(counts, rates, color=BLUE, marker="o", label="measured")
        axes.set(xlabel="processes", ylabel="million rows per second", ylim=(0, None))
        axes.set_xticks(counts)
        axes.legend(frameon=False)
        title_left(axes, f"Rows of 2D Navigation on {results['device']}")
        bare(axes)
        save(figure, folder / self.outputs[1])

    @staticmethod
    def table(results: Mapping[str, Any]) -> str:
        rows = [
            [f"{run['rows']:,} rows, {name}", *_line(run, "rows per second")] for name, run in results["runs"].items()
        ]
        rows += [
            [f"{one['rows']:,} rows, {one['workers']} processes", *_line(one, "steady")] for one in results["scaling"]
        ]
        columns = ("", "starts", "seconds", "rows per second", "memory, MB", "bytes per row")
        return markdown_table(columns, rows)

    @staticmethod
    def answer(results: Mapping[str, Any]) -> str:
        killed, whole = results["runs"]["killed"], results["runs"]["whole"]
        same = "the same bytes" if results["same_bytes"] else "OTHER BYTES"
        return (
            f"{whole['rows']:,} rows take {whole['seconds']:.0f} s on one {results['device']}, and "
            f"{killed['seconds']:.0f} s with {killed['starts'] - 1} kills on the way, with {same}."
        )

    @classmethod
    def blocks(cls, folder: Path) -> dict[str, str]:
        found = {title: read_json(folder / file) for file, title in FILES.items()}
        blocks = {
            file.partition(".")[0]: f"{measured(found[title])}\n\n{cls.table(found[title])}"
            for file, title in FILES.items()
        }
        counts = sorted({point["workers"] for one in found.values() for point in one["scaling"]})
        rows = []
        for title, one in found.items():
            rates = {point["workers"]: f"{point['steady']:,.0f}" for point in one["scaling"]}
            rows.append([title, *(rates.get(count, "") for count in counts)])
        scaling = markdown_table(["rows per second", *(f"{count} processes" for count in counts)], rows)
        return blocks | {"answer": cls.answer(found["one H200"]), "scaling": scaling}


SMALL = paper_dynamics(members=3, hidden=(64, 64), features=64, epochs=2, batch=256, learning_rate=3e-3, window=1)
Scale.presets = {
    "paper": Scale("paper", seeds=1, counts=(1, 8), timed_rows=16_000_000),
    "cores": Scale("cores", seeds=1, rows=100_000_000, shards=64, timed_rows=2_000_000),
    "quick": Scale("quick", seeds=1, rows=600_000, shards=12, recorded=4_000, timed_rows=200_000, dynamics=SMALL),
}


def _line(run: Mapping[str, Any], rate: str) -> list[str]:
    """The numbers of a run in the table, its rate by the key `rate`."""
    whole = [f"{run[key]:,.0f}" for key in ("starts", "seconds", rate, "memory")]
    return [*whole, f"{run['bytes per row']:.1f}"]


def run_killed(
    command: list[str], out: Path, shards: int, kills: int, progress: Any = lambda done: None
) -> dict[str, Any]:
    """Runs `mocoda` to its end, and on the way kills it, each time when another share of the shards is there."""
    begin, memory = time.monotonic(), 0.0
    at: list[int] = []
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "mocoda.cli", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        looked = 0.0
        while process.poll() is None:
            time.sleep(WATCH)
            there = sum(1 for _ in out.glob("shard-*.parquet"))
            progress(there)
            if len(at) < kills and there >= shards * (len(at) + 1) // (kills + 1):
                process.kill()
                at.append(there)
                break
            if time.monotonic() - looked >= LISTING:
                memory, looked = max(memory, resident(process.pid)), time.monotonic()
        _, said = process.communicate()
        if process.returncode == 0:
            break
        if process.returncode != -9:
            raise InputError(f"`mocoda {' '.join(command)}` failed: {said.strip()}")
    seconds = round(time.monotonic() - begin, 2)
    return {"seconds": seconds, "starts": len(at) + 1, "shards at kills": at, "memory": round(memory, 1)}


def resident(process: int) -> float:
    """Megabytes in memory of a process and of those that it started, pages that they share counted for each."""
    parents, pages = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            numbers = stat.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended
            continue
        parents[int(stat.parent.name)], pages[int(stat.parent.name)] = int(numbers[1]), int(numbers[21])
    own = {process}
    for _ in range(3):  # children of children of children
        own |= {child for child, parent in parents.items() if parent in own}
    return sum(pages.get(each, 0) for each in own) * os.sysconf("SC_PAGE_SIZE") / 2**20


def steady_rate(shards: list[Path], rows: int, workers: int) -> float:
    """Rows per second once every process has finished a shard, by the times of the files: no starts of processes."""
    times = sorted(shard.stat().st_mtime for shard in shards)
    seconds = times[-1] - times[min(workers, len(times)) - 1]
    return rows * (1 - workers / len(times)) / seconds if seconds > 0 else 0.0


def digest_of(files: list[Path]) -> str:
    """A hash of all bytes of the files."""
    whole = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def remove_shards(folder: Path) -> None:
    """Removes what a run of `mocoda augment --shards` has made in a folder of this experiment's."""
    for path in folder.glob("shard-*.parquet"):
        path.unlink()
    for name in ("manifest.json", "config.json", "progress.jsonl"):
        (folder / name).unlink(missing_ok=True)
    for left in folder.glob(".shard-*.part"):
        left.unlink()
    if folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
