"""The command that describes data. It imports nothing that takes long, so that a look at a small file is quick."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from mocoda.cli import options as opt
from mocoda.cli.options import say
from mocoda.engine.files import write_json

LISTED = 20  # episodes that the command names


@dataclass(frozen=True)
class Inspect(opt.Command):
    """Describe recorded data, and report what is wrong with it."""

    data: opt.Data
    reading: opt.Flat[opt.ReadOptions] = opt.AS_IT_SAYS
    json: opt.MaybeFile = None
    """Also write the report to this JSON file."""
    overwrite: opt.Overwrite = False

    def run(self) -> None:
        from mocoda.data import inspection

        if self.json is not None:
            opt.check_file(self.json, [self.data], self.overwrite)
        report = inspection.inspect(self.data, **self.reading.how)
        opt.show(report)
        if report.episode_scores is not None and len(flagged := report.episode_scores.flagged):
            which = f"--episodes {' '.join(map(str, flagged))}" if len(flagged) <= LISTED else "--bad"
            how = "" if self.reading == opt.AS_IT_SAYS else " and the options given here"
            say(f"To leave them out: mocoda drop {shlex.quote(self.data)} {which} --out clean.hdf5{how}")
        if self.json is not None:
            write_json(self.json, report.to_json())
            say(f"Written to {self.json}")
