"""Appends metrics of a training to metrics.jsonl, metrics.csv and, on request, TensorBoard's event files.

metrics.jsonl is the record; the other files can be made from it. A number is known by its update, data set, seed and
name. After a kill, a torn last line is dropped, the other files are made anew, and no number is written twice.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from mocoda.engine.errors import InputError
from mocoda.engine.files import whole_file

JSONL, CSV, TENSORBOARD = "metrics.jsonl", "metrics.csv", "tensorboard"
SUFFIX = ".mocoda"  # of event files, so that those of others are left alone
EVENTS = f"events.out.tfevents.*{SUFFIX}"
METRIC_FILES = (JSONL, CSV, f"{TENSORBOARD}/*/{EVENTS}")


class Metric(NamedTuple):
    """A number measured in one run."""

    update: int  # of the run's stage, counted from 1: when it was measured
    data: str  # the run's data set
    seed: int
    name: str  # "steps" of an evaluation, "loss/critic" of the updates since the last, "critic/q_max" of the last
    value: float


Report = Callable[[Sequence[Metric]], None]


class MetricLog:
    """The metrics of a folder; `add` is a `report` for `train_agents`.

    tensorboard  write event files too, one folder a run, also of the metrics that the folder already has
    """

    def __init__(self, folder: str | Path, *, tensorboard: bool = False) -> None:
        self.folder = Path(folder)
        if tensorboard:
            check_tensorboard()
        known = read_metrics(self.folder)
        if not known and (self.folder / CSV).exists():
            raise InputError(
                f"{str(self.folder / CSV)!r} is there without the {JSONL} from which it is made. Move it away, or "
                "choose another folder."
            )
        self._keys = {metric[:4] for metric in known}
        if known:
            _rewrite(self.folder / JSONL, _jsonl(known))
            _rewrite(self.folder / CSV, _csv([Metric._fields, *known]))
        self._events = _Events(self.folder / TENSORBOARD) if tensorboard else None
        if self._events is not None:
            self._events.add(known)

    def add(self, metrics: Iterable[Metric]) -> None:
        """Appends the metrics that are not there yet."""
        new = [metric for metric in metrics if metric[:4] not in self._keys]
        if not new:
            return
        self._keys |= {metric[:4] for metric in new}
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / JSONL).open("ab") as file:
            file.write(_jsonl(new))
        with (self.folder / CSV).open("ab") as file:
            file.write(_csv([*([] if file.tell() else [Metric._fields]), *new]))
        if self._events is not None:
            self._events.add(new)


def check_tensorboard() -> None:
    """Raises where event files cannot be written. Call it before long work."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise InputError(f'to write event files, pip install "mocoda[tensorboard]" ({error}).') from error


class _Events:
    """TensorBoard's event files: a folder for each run, so that TensorBoard draws the runs over each other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writers: dict[str, Any] = {}
        for old in folder.glob(f"*/{EVENTS}"):  # all is written again, under a new name so that it is read again
            old.unlink()

    def add(self, metrics: Iterable[Metric]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for metric in metrics:
            run = f"{metric.data}-{metric.seed}".replace("/", "_")
            if run not in self.writers:
                self.writers[run] = SummaryWriter(self.folder / run, filename_suffix=SUFFIX)
            self.writers[run].add_scalar(metric.name, metric.value, metric.update)
        for writer in self.writers.values():
            writer.flush()


def _jsonl(metrics: Iterable[Metric]) -> bytes:
    return "".join(json.dumps(metric._asdict(), ensure_ascii=False) + "\n" for metric in metrics).encode()


def _csv(rows: Iterable[Sequence[object]]) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _rewrite(path: Path, content: bytes) -> None:
    """Replaces a file's content, unless it is the same."""
    if not path.exists() or path.read_bytes() != content:
        with whole_file(path) as part:
            part.write_bytes(content)


def _metric(told: Any) -> Metric:
    metric = Metric(**told)
    if not all(map(isinstance, metric, (int, str, int, str, int | float))):
        raise TypeError("values of a metric are of other types")
    return metric


def read_metrics(folder: str | Path) -> list[Metric]:
    """The metrics in a folder, each number once; none where there is no file of them."""
    path = Path(folder) / JSONL
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # after the last newline is nothing, or a torn line
    try:
        metrics = [_metric(json.loads(line)) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{str(path)!r} was not written by mocoda, or damaged since. Remove it.") from error
    return list({metric[:4]: metric for metric in reversed(metrics)}.values())[::-1]
