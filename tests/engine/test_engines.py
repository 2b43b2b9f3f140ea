"""Engines: the same jobs, here, in processes and on a Ray of two workers, with deaths on the way."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from approved import refused
from errands import OddError, run
from streaming_world import Slow, prepare, prepared_as

from mocoda import Engine, InputError, augment_to_shards, make_engine
from mocoda.engine.engines import Processes, RayTasks, _check_address

NOTICES: list[str] = []


@pytest.fixture(scope="module")
def ray_of_two() -> Iterator[Engine]:
    """Real, on this machine, for all tests."""
    engine = RayTasks(workers=2, notice=NOTICES.append)
    with ExitStack() as stack:
        stack.enter_context(engine.ready())
        yield engine


@pytest.fixture(params=["here", "ray"])
def engine(request: pytest.FixtureRequest) -> Engine:
    NOTICES.clear()
    if request.param == "ray":
        found: Engine = request.getfixturevalue("ray_of_two")
        return found
    return make_engine("processes", workers=0 if request.param == "here" else 2, notice=NOTICES.append)


def test_every_job_comes_once_with_its_answer(engine: Engine) -> None:
    jobs = [("square", number) for number in range(7)]
    assert sorted(engine.run(run, jobs)) == [(job, job[1] ** 2) for job in jobs]
    assert list(engine.run(run, [])) == []


def test_an_error_of_the_work_is_raised_as_it_is_and_not_tried_again(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(OddError) as caught:
        list(engine.run(run, [("fail", tmp_path / "notes")]))
    assert caught.value.args == ("no", 7)
    assert (tmp_path / "notes").read_text() == "tried\n"


def test_work_is_done_with_one_thread_and_in_the_folder_of_the_caller(engine: Engine, tmp_path: Path) -> None:
    assert list(engine.run(run, [("threads", None)])) == [(("threads", None), 1)]
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(OddError):
            list(engine.run(run, [("fail", Path("here"))]))
    finally:
        os.chdir(before)
    assert (tmp_path / "here").exists()


@pytest.mark.parametrize("engine", ["processes", "ray"], indirect=True)
def test_a_job_whose_process_is_killed_is_done_again_and_that_is_said(engine: Engine, tmp_path: Path) -> None:
    jobs = [("square", 1), ("die once", tmp_path / "marker"), ("square", 2), ("square", 3)]
    assert {str(job[0]): answer for job, answer in engine.run(run, jobs)}["die once"] == "alive"
    assert len(NOTICES) == 1 and NOTICES[0].endswith("another one does its job again.")


@pytest.mark.long
def test_with_a_ray_of_two_workers_one_of_which_is_killed_in_the_middle_the_bytes_are_the_same(
    ray_of_two: Engine, tmp_path: Path
) -> None:
    NOTICES.clear()
    makers = tmp_path / "makers"
    makers.mkdir()
    killed: list[int] = []

    def kill_one() -> None:
        end = time.monotonic() + 100
        while len(found := [int(path.name) for path in makers.iterdir()]) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        killed.append(found[0])

    murderer = threading.Thread(target=kill_one)
    murderer.start()
    slow = partial(prepared_as, Slow, {"folder": makers}, rows=1_230)
    augment_to_shards(tmp_path / "rayed", slow, shards=4, engine=ray_of_two)
    murderer.join()
    plan = prepare(rows=1_230)
    augment_to_shards(tmp_path / "whole", lambda: plan, shards=4)
    assert len(killed) == 1 and len(list(makers.iterdir())) == 3  # two, and one in the place of the one that died
    assert NOTICES == ["A Ray worker died (WorkerCrashedError); another one does its job again."]
    rayed, whole = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("rayed", "whole")
    )
    assert rayed == whole and len(whole) == 5


def test_a_job_that_kills_every_ray_worker_is_given_up(ray_of_two: Engine) -> None:
    with refused():
        list(ray_of_two.run(run, [("die", None)]))


def test_gpus_that_no_machine_has_are_an_error_and_no_endless_wait(ray_of_two: Engine) -> None:
    with pytest.raises(InputError, match=r"^each job asks for 65 GPUs, and this Ray has "):
        list(make_engine("ray", gpus=65).run(run, [("square", 1)]))


def test_a_ray_that_we_start_runs_no_module_of_the_current_folder_and_listens_on_loopback_only(
    ray_of_two: Engine,
) -> None:
    """Whoever reaches a Ray can run code in it."""
    assert [answer for _, answer in ray_of_two.run(run, [("environment", "PYTHONSAFEPATH")])] == ["1"]
    ((_, worker),) = ray_of_two.run(run, [("process", None)])
    processes = descendants(os.getpid())
    assert worker in processes
    addresses = listening(processes)
    assert addresses and addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


def descendants(process: int) -> set[int]:
    """A process, those that it started, and so on."""
    found = {process}
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        for child in children.read_text().split():
            found |= descendants(int(child))
    return found


def listening(processes: set[int]) -> set[str]:
    """The addresses on which processes wait for connections."""
    sockets = set()
    for process in processes:
        for link in Path(f"/proc/{process}/fd").glob("*"):
            with suppress(OSError):
                sockets.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in sockets:
                address = bytes.fromhex(words[1].partition(":")[0])
                host = b"".join(address[place : place + 4][::-1] for place in range(0, len(address), 4))
                found.add(socket.inet_ntop(family, host))
    return found


def test_engines_are_found_by_their_names() -> None:
    assert isinstance(make_engine(), Processes) and isinstance(make_engine("ray"), RayTasks)
    with refused():
        make_engine("rai")
    with refused():
        make_engine(address="auto")
    with refused():
        _check_address("ray://127.0.0.1:1")  # where nobody answers
