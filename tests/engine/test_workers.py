"""Jobs in other processes: order, errors, deaths, and that nobody is left behind."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from approved import refused
from errands import Errand, OddError, run

from mocoda.engine.workers import Workers

Runners = Workers[Errand, Any]


@pytest.fixture(scope="module")
def two() -> Iterator[Runners]:
    """Two processes for all tests that leave them as they are, or let them be replaced."""
    with Workers(run, 2) as workers:
        yield workers


@pytest.fixture(params=[0, 2], ids=["here", "two processes"])
def some(request: pytest.FixtureRequest, two: Runners) -> Iterator[Runners]:
    if request.param:
        yield two
    else:
        with Workers(run, 0) as workers:
            yield workers


def gone(process: int) -> bool:
    """Whether the process is no more, or only waits for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].startswith("Z")
    except FileNotFoundError:
        return True


def soon_gone(processes: list[int], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not all(map(gone, processes)):
        time.sleep(0.05)
    return all(map(gone, processes))


# Answers


def test_answers_come_in_the_order_of_the_jobs(some: Runners) -> None:
    jobs: list[Errand] = [("sleep", 0.3), ("square", 4), ("sleep", 0.0), ("sleep", 0.1), ("square", 5)]
    assert list(some.map(jobs)) == [0.3, 16, 0.0, 0.1, 25]


def test_jobs_are_done_in_other_processes_at_the_same_time_and_with_one_thread_each(
    two: Runners, tmp_path: Path
) -> None:
    processes = set(two.map([("meet", tmp_path)] * 2))
    assert len(processes) == 2 and os.getpid() not in processes
    assert set(two.map([("threads", None)] * 4)) == {1}


def test_without_processes_jobs_are_done_here_with_one_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Workers(run, 0) as here:
            assert list(here.map([("process", None), ("threads", None)])) == [os.getpid(), 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("ahead", [0, 3, None])
def test_jobs_may_go_on_for_ever_and_few_are_taken_ahead(some: Runners, ahead: int | None) -> None:
    taken = []

    def jobs() -> Iterator[Errand]:
        for i in itertools.count():
            taken.append(i)
            yield "square", i

    answers = list(itertools.islice(some.map(jobs(), ahead), 9))
    assert answers == [i**2 for i in range(9)]
    assert len(taken) == 9 + (2 * some.count if ahead is None else ahead)


def test_processes_run_no_module_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("signal.py").write_text("open('executed', 'w')")
    with Workers(run, 1) as runners:
        assert list(runners.map([("square", 3)])) == [9]
    assert not Path("executed").exists() and "PYTHONSAFEPATH" not in os.environ


def test_a_negative_number_of_processes_is_refused() -> None:
    with refused():
        Workers(run, -1)


# Errors and deaths


def test_an_error_of_the_work_is_raised_as_it_is_and_the_work_not_tried_again(two: Runners, tmp_path: Path) -> None:
    number, other = two.submit(("fail", tmp_path / "notes")), two.submit(("square", 3))
    with pytest.raises(OddError) as caught:
        number.result()
    assert caught.value.args == ("no", 7)
    assert (tmp_path / "notes").read_text() == "tried\n"
    assert other.result() == 9


@pytest.mark.parametrize(
    ("job", "kind", "says"),
    [
        (("square", lambda: 0), Exception, r"pickle|local object"),
        (("fail unreadably", None), RuntimeError, "^a worker process failed with UnreadableError: lost at sea$"),
        (("answer unreadably", None), ValueError, "invalid literal"),
    ],
)
def test_what_cannot_be_sent_is_an_error_and_no_death(two: Runners, job: Errand, kind: type, says: str) -> None:
    number, other = two.submit(job), two.submit(("square", 3))
    with pytest.raises(kind, match=says):
        number.result()
    assert other.result() == 9


def test_a_process_that_dies_is_replaced_and_every_job_is_answered(two: Runners, tmp_path: Path) -> None:
    dying: list[Errand] = [("die once", tmp_path / "one"), ("die once", tmp_path / "other")]
    jobs: list[Errand] = [("square", 1), dying[0], ("square", 2), ("square", 3), dying[1], ("square", 4)]
    assert list(two.map(jobs)) == [1, "alive", 4, 9, "alive", 16]


def test_a_job_that_kills_every_process_is_given_up_and_the_others_are_answered() -> None:
    with Workers(run, 1) as one:
        good, bad = one.submit(("square", 3)), one.submit(("die", None))
        with refused():
            bad.result()
        assert good.result() == 9


# Nobody is left behind


@pytest.mark.parametrize("how", ["ends", "raises"])
def test_processes_end_with_the_block_whatever_they_are_doing(how: str) -> None:
    with pytest.raises(OddError) if how == "raises" else nullcontext(), Workers(run, 1) as one:
        process = one.submit(("process", None)).result()
        for _ in range(5):
            one.submit(("sleep", 100))
        assert not gone(process)
        begin = time.monotonic()
        if how == "raises":
            raise OddError
    assert time.monotonic() - begin < 60 and gone(process)


PARENT = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are told to ignore Ctrl-C
sys.path.insert(0, sys.argv[1])
from approved import refused
from errands import run
from mocoda.engine.workers import Workers
if __name__ == "__main__":
    with Workers(run, 2) as two:
        print(*two.map([("meet", Path(sys.argv[2]))] * 2), flush=True)
        list(two.map([("sleep", 100)] * 5))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_processes_end_with_a_parent_that_is_stopped(how: signal.Signals, tmp_path: Path) -> None:
    script, meeting = tmp_path / "parent.py", tmp_path / "meeting"
    script.write_text(PARENT)
    meeting.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parents[1] / "worlds"), str(meeting)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert parent.stdout is not None
    processes = [int(word) for word in parent.stdout.readline().split()]
    assert len(processes) == 2 and not any(map(gone, processes))
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does
    else:
        parent.send_signal(how)
    assert parent.wait(timeout=60) == -how  # a busy machine takes its time
    assert soon_gone(processes)
    parent.communicate()


def test_the_block_ends_at_once_though_processes_are_in_the_middle_of_large_answers() -> None:
    """A pool whose processes share a pipe waits for ever for the rest of an answer whose sender was killed."""
    with Workers(run, 2) as workers:
        answers = workers.map(("megabytes", 4) for _ in itertools.count())
        assert all(len(next(answers)) == 4 * 2**20 for _ in range(8))
        begun = time.monotonic()
    assert time.monotonic() - begun < 60


UNGUARDED = """
from approved import refused
from errands import run
from mocoda.engine.workers import Workers

with Workers(run, 1) as workers:
    print(list(workers.map([("square", 2)])))
"""


def test_a_script_that_every_process_would_run_again_ends_with_the_reason(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED, "utf-8")
    path = os.pathsep.join([str(Path(__file__).parents[1] / "worlds"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 1
    assert 'Or a script does its work outside `if __name__ == "__main__":`' in done.stderr.splitlines()[-1]
