"""The command line: words in, work done. One verb a stage."""

from mocoda.cli.verbs import main

__all__ = ["main"]
