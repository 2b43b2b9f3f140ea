"""The command line: one command per stage. Heavy libraries are imported by the command that needs them."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from mocoda.engine.cores import core_seconds, leave_busy_cores
from mocoda.engine.errors import InputError, file_error, printable_lines, ran_out_of_memory, unknown_name
from mocoda.engine.files import VERSION, discard_unfinished

if TYPE_CHECKING:
    from mocoda.cli.options import Command

__all__ = ["COMMANDS", "command_of", "main", "read_command"]

# The module and class of every command, and the first sentence of its help, so that a list of them imports nothing.
COMMANDS = {
    "demo": ("demo:Demo", "Show the whole method in minutes: data, graph, new rows, agents before and after, a page."),
    "collect": ("data:Collect", "Record data of a built-in task."),
    "inspect": ("inspect:Inspect", "Describe recorded data, and report what is wrong with it and with its episodes."),
    "merge": ("edit:Merge", "Join recordings that have the same columns."),
    "split": ("edit:Split", "Split a recording by whole episodes, such as for training and testing."),
    "trim": ("edit:Trim", "Cut still rows, or other steps, off the starts and ends of episodes."),
    "drop": ("edit:Drop", "Leave out episodes or rows, such as all episodes that inspect flags."),
    "track": ("data:Track", "Give objects that exchange places their columns back."),
    "graph": ("graph:Graph", "Draw a graph over its data, learn one from data, or explain a learned one."),
    "check": ("graph:Check", "Check whether the data supports its graph, and which recipe to try."),
    "label": ("data:Label", "Label recorded data with rewards."),
    "add-objects": ("data:AddObjects", "Make data of a bigger world: recorded episodes with additional objects."),
    "augment": ("augment:Augment", "Extend recorded data with counterfactual transitions or episodes."),
    "audit": ("audit:Audit", "Replay generated rows in a simulator, and report which share of them is true."),
    "report": ("pages:Report", "Write a page about data and trainings: one HTML file that opens in any browser."),
    "export": ("data:Export", "Write data, or a trained policy, in another format."),
    "train": ("agents:Train", "Train one agent for each data set and seed, all as one program."),
    "evaluate": ("agents:Evaluate", "Measure how well trained agents solve their task."),
    "whatif": ("whatif:WhatIf", "Ask what would have happened in a recorded step if something had been different."),
    "watch": ("agents:Watch", "Film a trained agent, or the scripted expert, at its task."),
}


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command that the words name, or this process was called with. Bad input is one line and exit code 2."""
    begun = core_seconds() if words is None else None
    if words is None:
        usual = warnings.formatwarning
        warnings.formatwarning = lambda *given, **named: printable_lines(usual(*given, **named))
    words = sys.argv[1:] if words is None else list(words)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if words in ([], ["-h"], ["--help"]):
            _print_commands()
        elif words == ["--version"]:
            sys.stdout.write(f"mocoda {VERSION}\n")
        else:
            command = read_command(words)
            if begun is not None:
                leave_busy_cores(begun)
            command.run()
    except KeyboardInterrupt:  # the run folder has said how to continue
        sys.exit(130)
    except BrokenPipeError:
        os._exit(1)  # without a message: `head` has seen enough
    except Exception as error:
        if ran_out_of_memory(error):
            _fail(
                "memory ran out. Close other programs, or use fewer rows, fewer --workers, or smaller networks and "
                "batches; the same command goes on from what is finished."
            )
        if not isinstance(error, InputError | OSError):
            raise
        _fail(str(error) if isinstance(error, InputError) else file_error(error))


def read_command(words: Sequence[str]) -> Command:
    """The command that the words describe, ready to run."""
    from mocoda.cli.options import parse

    name, *options = words
    return parse(command_of(name), options, name)


def command_of(name: str) -> type[Command]:
    """The class of the command called `name`."""
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    module, _, kind = COMMANDS[name][0].partition(":")
    command: type[Command] = getattr(import_module(f"mocoda.cli.{module}"), kind)
    return command


def _print_commands() -> None:
    commands = "".join(f"  {name:12} {sentence}\n" for name, (_, sentence) in COMMANDS.items())
    sys.stdout.write(
        "usage: mocoda COMMAND [OPTIONS]\n\n"
        "Model-based counterfactual data augmentation: recorded transitions in, unseen ones out.\n\n"
        f"{commands}\n`mocoda COMMAND --help` describes a command and its options.\n"
    )


def _fail(sentence: str) -> None:
    start = "\033[31merror: \033[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else "error: "
    sys.stderr.write(f"{start}{printable_lines(sentence)}\n")
    sys.exit(2)


def _terminate(number: int, frame: object) -> None:
    """Ends at once: a library's callback might swallow an exception."""
    discard_unfinished()
    os._exit(128 + number)
