"""The command line: one command a stage. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from inspect import getdoc

import rich.console
from rich.table import Table
from rich.text import Text

from mocoda.cli.parser import Command, parse
from mocoda.engine.errors import InputError, file_error
from mocoda.engine.files import VERSION, discard_unfinished

__all__ = ["COMMANDS", "command_of", "main", "read_command"]

COMMANDS = {
    "demo": "paper:Demo",
    "collect": "data:Collect",
    "inspect": "data:Inspect",
    "graph": "graph:Graph",
    "check": "data:Check",
    "label": "augment:Label",
    "add-objects": "data:AddObjects",
    "augment": "augment:Augment",
    "audit": "audit:Audit",
    "report": "report:Report",
    "export": "data:Export",
    "train": "agents:Train",
    "evaluate": "agents:Evaluate",
    "whatif": "whatif:WhatIf",
    "watch": "agents:Watch",
    "paper": "paper:Paper",
    "bench": "paper:Bench",
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command that the words name. Bad input ends in one line and exit code 2."""
    words = sys.argv[1:] if words is None else list(words)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if words in ([], ["-h"], ["--help"]):
            _print_commands()
        elif words == ["--version"]:
            rich.console.Console().print(f"mocoda {VERSION}", highlight=False)
        else:
            read_command(words).run()
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            os._exit(1)  # without a word, as where rich prints: `head` has seen enough
        _fail(file_error(error))
    except KeyboardInterrupt:  # what can be continued was said by its run folder
        sys.exit(130)


def read_command(words: Sequence[str]) -> Command:
    """The command that the words describe, ready to run."""
    name, *options = words
    return parse(command_of(name), options, name)


def command_of(name: str) -> type[Command]:
    """The class of the command called `name`."""
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "`mocoda --help` lists the commands."
        raise InputError(f"there is no command {name!r}. {hint}")
    module, _, kind = COMMANDS[name].partition(":")
    command: type[Command] = getattr(import_module(f"mocoda.cli.{module}"), kind)
    return command


def _print_commands() -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name in COMMANDS:
        table.add_row(name, (getdoc(command_of(name)) or "").partition("\n")[0])
    console = rich.console.Console(highlight=False)
    console.print("usage: mocoda COMMAND [OPTIONS]\n", markup=False)
    console.print("Model-based counterfactual data augmentation: recorded transitions in, unseen ones out.\n")
    console.print(table)
    console.print("\n`mocoda COMMAND --help` describes a command and its options.")


def _fail(sentence: str) -> None:
    rich.console.Console(stderr=True).print(Text("error: ", "red").append(sentence, "default"), soft_wrap=True)
    sys.exit(2)


def _nobody_reads() -> bool:
    """Whether it is standard output that broke, rather than a pipe between processes."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return False


def _terminate(number: int, frame: object) -> None:
    """Ends at once: an exception could be raised where nobody passes it on, in a library's callback, say."""
    discard_unfinished()
    os._exit(128 + number)
