"""Every experiment at a size that takes little time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.ablations import Ablations
from experiments.audit import Audit
from experiments.audit import Trial as AuditTrial
from experiments.check import GraphCheck
from experiments.cubes import CubesTable
from experiments.diffusion import DiffusionConfig
from experiments.dose import Dose, Trial
from experiments.entanglement import Entanglement
from experiments.entanglement.values import ValueConfig
from experiments.learned_masks import LearnedMasks
from experiments.masks import Masks
from experiments.masks.mechanisms import Training
from experiments.merit import FigureOfMerit
from experiments.reweighting import Reweighting
from experiments.scale import Scale
from experiments.scene import SceneTable
from experiments.speed import Speed
from experiments.table1 import Table1
from experiments.table2 import Table2
from experiments.table3 import Table3
from experiments.theory import Theory
from experiments.whatif import WhatIfs
from mocoda import DynamicsConfig, GateLearner, make_agent

MODEL = DynamicsConfig(members=2, hidden=(16,), features=8, epochs=2, batch=128, window=1)
SWEEPING = replace(MODEL, epoch_rows=512, validation=200)
SMALL: dict[str, Any] = {"hidden": (16,), "batch": 32, "learning_rate": 0.01, "polyak": 0.1}
SAMPLERS: dict[str, Any] = {"samplers": 2, "components": 2, "proposals": 3, "sampler_hidden": (8,)}
AGENT = make_agent("td3-bc", **SMALL)
SWEEPER = make_agent("td3-bc", **SMALL, decay=True, standardise=True)
BCQ = make_agent("bcq", **SMALL, **SAMPLERS, sampler_updates=20, sampler_batch=32)
DIFFUSION = DiffusionConfig(hidden=(16,), updates=20, batch=32, steps=3)
WALKS = Trial(
    (120, 200),
    2,
    replace(MODEL, epoch_rows=128, batch=64),
    (AGENT,),
    updates=20,
    evaluations=2,
    last=1,
    episodes=2,
    components=2,
)
SWEEPS = replace(WALKS, sizes=(150,), seeds=1, updates=2, goals=3)
ROWS = AuditTrial(("coda", "mocoda", "mocoda-matched"), MODEL, rows=400, audited=120, components=4)
ROBOT = replace(ROWS, columns=("mocoda", "mocoda-matched"), rows=300, audited=30)

TINY: dict[str, Any] = {
    "table1": Table1("tiny", seeds=2, dynamics=MODEL, rows=1_000, test_rows=300, components=4),
    "table2": Table2(
        "tiny",
        seeds=2,
        dynamics=MODEL,
        agents={"td3-bc": AGENT, "bcq": BCQ},
        diffusion=DIFFUSION,
        columns=("emp", "dyna", "mocoda", "default"),
        rows=1_500,
        total=3_000,
        updates=200,
        evaluate_every=100,
        episodes=3,
        last=1,
        components=4,
    ),
    "table3": replace(
        Table3.presets["quick"],
        preset="tiny",
        dynamics=SWEEPING,
        agents={"td3-bc": SWEEPER},
        diffusion=DIFFUSION,
        updates={"td3-bc": 40},
        evaluations=2,
        rows=1_100,  # of one part of the recording
        total=2_600,
        episodes=1,
        last=1,
        expert_episodes=6,  # of which one sweeps box 1
        confirmed_rows=40,
        components=4,
    ),
    "theory": Theory(
        "tiny",
        seeds=2,
        repetitions=40,
        factors=(1, 2, 3),
        full_factors=2,
        fixed_factors=3,
        shares=(1 / 64, 1 / 2),
        epsilon=0.8,
        resolution=2,
    ),
    "reweighting": Reweighting("tiny", seeds=2, factors=(1, 3), rows=2_000, test_rows=500, budget=60_000, components=4),
    "whatif": WhatIfs("tiny", seeds=2, dynamics=MODEL, rows=1_500, questions=400, components=4),
    "entanglement": Entanglement(
        "tiny",
        seeds=2,
        dynamics=MODEL,
        values=ValueConfig(updates=120, hidden=(16,), batch=64),
        counts=(1, 3),
        episodes=6,
        objects=2,
        rows=2_000,
        made=1_000,
        components=3,
        test_rows=50,
    ),
    "ablations": Ablations(
        "tiny",
        seeds=2,
        dynamics=MODEL,
        agent=AGENT,
        values=ValueConfig(updates=20, hidden=(16,), batch=64),
        variants=("mocoda", "default", "validation", "generated", "reweighted", "shared", "full-10", "irrelevant-1"),
        rows=600,
        total=800,
        updates=40,
        evaluate_every=20,
        episodes=2,
        last=1,
        test_rows=50,
        components=2,
    ),
    "dose": Dose("tiny", seeds=2, navigation=WALKS, hooksweep2=SWEEPS, tasks=("navigation",), doses=(0.0, 0.5, 3.0)),
    "cubes": replace(
        CubesTable.presets["quick"],
        preset="tiny",
        agent=make_agent("gciql", hidden=(16,), batch=16),
        updates=20,
        arms=("permuted", "added"),
        rows=6_000,
        total=6_400,
    ),
    "scene": replace(
        SceneTable.presets["quick"],
        preset="tiny",
        dynamics=MODEL,
        agent=make_agent("gciql", hidden=(16,), batch=16),
        rows=2_000,
        new=400,
        audited=20,
        updates=20,
        arms=("recorded", "turns-written"),
        total=2_200,
        learner=GateLearner(runs=1, hidden=16, baseline_steps=4, steps=4, batch=16),
    ),
    "audit": Audit(
        "tiny",
        1,
        ROWS,
        ROWS,
        replace(ROBOT, variety="varied"),
        replace(ROBOT, variety="play"),
        ("navigation", "objects"),
    ),
    "check": GraphCheck("tiny", seeds=2, worlds=("navigation",), rows=400, edges=1, drawn=100, quick=True),
    "masks": Masks(
        "tiny",
        seeds=2,
        worlds=("navigation", "dag:2"),
        rows=(60, 200),
        methods=("gradient", "distance", "given"),
        judged=300,
        training=Training(hidden=(8,), updates=3, batch=16),
    ),
    "learned-masks": LearnedMasks(
        "tiny",
        seeds=1,
        sizes="tiny",
        worlds=("navigation",),
        graphs=GateLearner(runs=1, hidden=16, baseline_steps=4, steps=4, batch=16),
        caution=0.1,
    ),
    "scale": replace(Scale.presets["quick"], preset="tiny", rows=200_000, counts=(1, 2), timed_rows=50_000),
    "speed": Speed("tiny", seeds=1, repeats=1, parts=("matched-4",)),
}
# The sizes that other experiments take from the tables.
TABLES: dict[Any, Any] = {
    Table1: replace(TINY["table1"], components=2),
    Table2: replace(
        TINY["table2"],
        agents={"td3-bc": AGENT},
        rows=1_000,
        total=1_100,
        updates=4,
        evaluate_every=2,
        columns=("mocoda",),
    ),
    Table3: replace(TINY["table3"], rows=1_100, total=1_200, updates={"td3-bc": 4}, confirmed_rows=10, components=2),
}
LONG = ("table3", "cubes", "scene", "scale", "merit")  # simulate robots, or start processes that are killed
TINY["merit"] = FigureOfMerit(
    "tiny",
    seeds=1,
    table2=replace(TINY["table2"], seeds=1, columns=("emp", "rand", "mocoda")),
    table3=replace(TINY["table3"], seeds=1, columns=("emp", "mocoda")),
    dose=replace(TINY["dose"], tasks=("navigation",), seeds=1),
)
