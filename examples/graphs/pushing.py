"""A gripper and two boxes that push each other where they touch; the task is to bring box 1 to a corner."""

edges = {
    "gripper": ["gripper", "action"],
    "box1": ["gripper", "box1"],
    "box2": ["gripper", "box2"],
}


def local(f):
    near = (f["box1"] - f["box2"]).norm(dim=1) < 0.05
    return {("box1", "box2"): near, ("box2", "box1"): near}


def reward(state, action, next_state):
    return terminal(state, action, next_state).float() - 1


def terminal(state, action, next_state):
    box1 = next_state[:, 2:4]
    return (box1 > 0.9).all(1)
