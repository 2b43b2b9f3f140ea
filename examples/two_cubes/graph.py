"""What depends on what on the table, what is wanted, and the simulator that knows the true next states."""

import torch

environment = "franka:TwoCubes-v0"  # in the file beside this one

edges = {"arm": ["arm", "move"], "cube1": ["cube1"], "cube2": ["cube2"]}
action = {"move": ["move.x", "move.y"]}

NEAR = 0.1  # metres: fingers and cubes touch below 0.07, and the hand moves up to 0.03 in a step


def local(f):
    """Hand and cube depend on each other where they may touch within a step, and so do the cubes."""
    found = {}
    for cube in ("cube1", "cube2"):
        near = (f["arm", "x", "y"] - f[cube, "x", "y"]).norm(dim=1) < NEAR
        found |= {("arm", cube): near, ("move", cube): near, (cube, "arm"): near}
    touching = (f["cube1", "x", "y"] - f["cube2", "x", "y"]).norm(dim=1) < NEAR
    return found | {("cube1", "cube2"): touching, ("cube2", "cube1"): touching}


GOALS = torch.tensor([[0.66, -0.12], [0.66, 0.12]])


def at_goal(state):
    """Which cubes are in their zones, (N, 2)."""
    places = torch.stack([state[:, 17:19], state[:, 30:32]], 1)
    return (places - GOALS.to(state.device)).norm(dim=2) < 0.05


def reward(state, action, next_state):
    return at_goal(next_state).float().mean(1) - 1


def terminal(state, action, next_state):
    return at_goal(next_state).all(1)


def step(rows):
    import franka

    return franka.step(rows.cpu().numpy())
