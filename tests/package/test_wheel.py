"""The package as others get it: a wheel, in an environment that has never seen the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import mocoda

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "mocoda", source / "mocoda", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", cwd=source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a fresh environment with the wheel; what it depends on is read from this one's packages."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", home / "bin" / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=home)
    (packages,) = home.glob("lib/python*/site-packages")
    # A path in a .pth file is no site folder: the editable install's own .pth file there is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.mark.long
def test_the_wheel_holds_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = {str(path.relative_to(ROOT)) for path in (ROOT / "mocoda").rglob("*.py")} | {"mocoda/py.typed"}
    for ending in ("safetensors", "html", "css", "js"):
        source |= {str(path.relative_to(ROOT)) for path in (ROOT / "mocoda").rglob(f"*.{ending}")}
    info = f"mocoda-{mocoda.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == source
    assert any(name.startswith(info) and name.endswith("LICENSE") for name in names)
    assert wheel.name == f"mocoda-{mocoda.__version__}-py3-none-any.whl"


@pytest.mark.long
def test_the_installed_package_is_complete(binaries: Path, tmp_path: Path) -> None:
    run(binaries / "mocoda", "collect", "navigation", "--rows", "100", "--out", "x.hdf5", cwd=tmp_path)
    script = (
        "import mocoda, gymnasium; env = gymnasium.make('mocoda/Navigation2D-v0'); env.reset(seed=0); "
        "print(mocoda.__file__, len(mocoda.Transitions.load('x.hdf5')), len(env.step(env.action_space.sample())))"
    )
    place, *counts = run(binaries / "python", "-c", script, cwd=tmp_path).split()
    assert Path(place).is_relative_to(binaries.parent) and not Path(place).is_relative_to(ROOT)
    assert counts == ["100", "5"]


WITHOUT_EXTRAS = """
import importlib, pkgutil, re, sys
from importlib.metadata import packages_distributions, requires

needed, waiting = set(), ["mocoda"]
while waiting:
    name = waiting.pop()
    if name not in needed:
        needed.add(name)
        try:
            found = requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # of another platform
            continue
        base = [re.match(r"[\\w.-]+", line)[0] for line in found if "extra ==" not in line]
        waiting += [name.lower().replace("_", "-") for name in base]

class OnlyNeeded:
    homes = {m: {d.lower().replace("_", "-") for d in ds} for m, ds in packages_distributions().items()}

    def find_spec(self, name, path=None, target=None):
        homes = self.homes.get(name.split(".")[0])
        if homes and not homes & needed:
            raise ModuleNotFoundError(f"{name} is of an extra")

sys.meta_path.insert(0, OnlyNeeded())
import mocoda
modules = [module.name for module in pkgutil.walk_packages(mocoda.__path__, "mocoda.") if "__main__" not in module.name]
for name in modules:
    importlib.import_module(name)
print(len(modules), "torch" in needed, "pandas" in needed)
"""


def test_every_module_imports_with_the_base_dependencies_alone() -> None:
    count, torch, pandas = run(sys.executable, "-c", WITHOUT_EXTRAS, cwd=ROOT).split()
    assert int(count) > 50 and (torch, pandas) == ("True", "False")


TARGETS = [("demo", ".[hooksweep,report]"), ("test", ".[dev]"), ("lint", ".[dev]")]


@pytest.mark.parametrize(("target", "package"), TARGETS)
def test_make_installs_what_a_target_needs(target: str, package: str) -> None:
    planned = run("make", "--dry-run", "--always-make", target, cwd=ROOT)
    assert [line.split()[-1] for line in planned.splitlines() if " pip install " in line] == [f'"{package}"']
