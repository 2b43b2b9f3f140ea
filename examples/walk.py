"""Walks through an example: runs the commands of its README in order, and puts what they measured into the README.

python examples/walk.py traffic             # up to 15 minutes on two cores
python examples/walk.py two_cubes --tiny    # a minute or two, to see that it runs; measures nothing
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AT_MOST = {"--rows": 1_500, "--updates": 20, "--seeds": 1, "--episodes": 2}  # of a tiny walk
COMMAND = re.compile(r"^((?:mocoda|python|sed) .*?)(?:\s+# (.*))?$", re.MULTILINE)  # with the comment behind it
BLOCK = re.compile(r"<!-- block: ([\w-]+) -->\n(.*?)<!-- end -->", re.DOTALL)


def commands(readme: str) -> list[tuple[str, str]]:
    """The commands of a README, less those that install something, each with the comment behind it."""
    shell = "\n".join(re.findall(r"^```bash\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL))
    return [(command, said or "") for command, said in COMMAND.findall(re.sub(r"\\\n\s*", "", shell))]


def shrunk(command: str) -> str:
    """The command with fewer rows, updates, seeds and episodes; networks that it trains are small."""
    for option, most in AT_MOST.items():
        command = re.sub(rf"({option}) ([\d_]+)", lambda m, most=most: f"{m[1]} {min(int(m[2]), most)}", command)
    return command + " --quick" * bool(re.match(r"mocoda (check|augment|graph .*--learn)", command))


def run(command: str, folder: Path, cores: int) -> dict[str, Any]:
    """Runs a command in a folder; returns how long it took, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": str(cores), "MPLBACKEND": "agg", "MUJOCO_GL": "egl"}
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"command": command, "minutes": (time.monotonic() - start) / 60, "cpu_seconds": used, "said": done.stdout}


def walk(example: Path, folder: Path, tiny: bool, cores: int) -> dict[str, Any]:
    """Runs all commands of an example in a folder, and collects what they found."""
    found: dict[str, Any] = {"steps": [], "audits": {}, "checks": {}, "cores": cores}
    for command, said in commands((example / "README.md").read_text("utf-8")):
        print(command, end="", flush=True)
        step = run(shrunk(command) if tiny else command, folder, cores)
        print(f"   {step['minutes']:.1f} minutes, {step['cpu_seconds']:.0f} s of CPU", flush=True)
        out = re.search(r"--out (\S+)", command)
        if command.startswith("mocoda audit") and out:
            audit = json.loads((folder / out[1] / "audit.json").read_text("utf-8"))
            found["audits"][said] = {name: audit["by"]["recipe"][name] for name in audit["by"]["recipe"]}
        if command.startswith("mocoda check"):
            found["checks"][said] = step["said"].strip().splitlines()[-6:]
        if command.startswith("mocoda evaluate"):
            found["agents"] = json.loads((folder / "runs" / "agents" / "evaluation.json").read_text("utf-8"))
        found["steps"].append({name: step[name] for name in ("command", "minutes", "cpu_seconds")})
    return found


def share(cell: dict[str, Any]) -> str:
    low, high = cell["interval"]
    return f"{100 * cell['share']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"


def table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def blocks(found: dict[str, Any]) -> dict[str, str]:
    """What the README shows of a walk, as Markdown by the block's name."""
    recorded = next(audit["recorded"] for audit in found["audits"].values() if "recorded" in audit)
    rows = [["recorded", share(recorded)]]
    for said, audit in found["audits"].items():
        rows += [[said, share(cell)] for name, cell in audit.items() if name != "recorded"]
    agents: dict[str, list[dict[str, Any]]] = {}
    for one in found["agents"]["runs"]:
        agents.setdefault(one["data"], []).append(one)
    steps = [[f"`{s['command']}`", f"{s['minutes']:.1f}", f"{s['cpu_seconds']:.0f}"] for s in found["steps"]]
    total = [sum(step[name] for step in found["steps"]) for name in ("minutes", "cpu_seconds")]
    return {
        "rows": table(["rows", "the simulator confirms (95% interval)"], rows),
        "checks": "\n".join(f"{said}: {' '.join(text)}\n" for said, text in found["checks"].items()),
        "agents": table(
            ["trained on", "episodes solved, by seed", "return, by seed"],
            [
                [f"`{name}`", *(", ".join(f"{run[what]:.2f}" for run in runs) for what in ("success", "return"))]
                for name, runs in agents.items()
            ],
        ),
        "minutes": table(
            ["command", "minutes", "seconds of CPU"], [*steps, ["all", f"{total[0]:.0f}", f"{total[1]:.0f}"]]
        ),
    }


def filled(page: str, found: dict[str, Any]) -> str:
    """A README with what a walk has measured."""
    made = blocks(found)
    return BLOCK.sub(lambda match: f"<!-- block: {match[1]} -->\n\n{made[match[1]]}\n\n<!-- end -->", page)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("example", choices=["traffic", "two_cubes"])
    options.add_argument("--tiny", action="store_true")
    options.add_argument("--folder", type=Path, default=Path("runs/walk"))
    options.add_argument("--cores", type=int, default=2)
    given = options.parse_args()
    example = HERE / given.example
    given.folder.mkdir(parents=True, exist_ok=True)
    for file in example.glob("*.py"):
        shutil.copy(file, given.folder)
    found = walk(example, given.folder, given.tiny, given.cores)
    page = filled((example / "README.md").read_text("utf-8"), found)
    if not given.tiny:
        (example / "measured.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        (example / "README.md").write_text(page, "utf-8")
