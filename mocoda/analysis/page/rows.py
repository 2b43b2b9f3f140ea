"""The rows that a page holds, chosen by what is worst and by chance, and packed for the browser."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mocoda.analysis.page.origins import main_donors, origins
from mocoda.augmentation.support import recipe_number
from mocoda.data.transitions import Transitions
from mocoda.engine.randomness import Stream
from mocoda.graph.local_graph import LocalGraph
from mocoda.parents import BUILT_IN

LARGEST = 4_500_000  # bytes of rows that a page holds, at most
PART = 0.25  # of the rows: those of least support, those of most disagreement, and recorded ones


@dataclass(frozen=True, eq=False)
class Split:
    """A table as its recorded and its generated rows, with the numbers that these have in it.

    elsewhere  recorded rows that are of another table, and so have no numbers
    numbers    (N,), the numbers that the rows have in a table of which this one is an excerpt
    """

    data: Transitions
    known: Transitions
    made: Transitions | None
    known_numbers: Tensor
    made_numbers: Tensor
    elsewhere: bool
    numbers: Tensor | None = None

    @property
    def tables(self) -> list[Transitions]:
        return [self.known] if self.made is None else [self.known, self.made]

    def named(self, places: Tensor) -> Tensor:
        """The numbers that the page calls these rows by; -1 stays."""
        return places if self.numbers is None else torch.where(places < 0, -1, self.numbers[places.clamp(min=0)])

    @property
    def row_bytes(self) -> int:
        """What a row takes in the page, as text."""
        width = 3 * (2 * self.data.state.shape[1] + self.data.action.shape[1])
        return 4 * (4 * width // 3 + 3 * len(self.data.columns) + 20)


def choose_rows(split: Split, count: int, show: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    """The numbers of the rows to hold, ascending: `count` at most, and those to `show` by all means.

    Also which of them are a sample at random, of each kind of rows.
    """
    count = min(count, max(1, LARGEST // 2 // split.row_bytes))
    part = max(1, int(PART * count))
    chosen, drawn = [show], []
    if not split.elsewhere:
        drawn.append(split.known_numbers[stream.child("known").permutation(len(split.known))])
        support = split.known.provenance["support"].argsort(stable=True)
        chosen += [drawn[0][: part // 2], split.known_numbers[support[: part // 2]]]
    if split.made is not None:
        notes = split.made.provenance
        if "confirmed" in notes:  # those that a simulator refutes
            chosen.append(split.made_numbers[(notes["confirmed"] == 0).nonzero()[:part, 0]])
        for name, sign in (("support", 1), ("disagreement", -1)):
            if name in notes:
                chosen.append(split.made_numbers[(sign * notes[name]).argsort(stable=True)[:part]])
        drawn.append(split.made_numbers[stream.child("made").permutation(len(split.made))])
    chosen.append(drawn[-1][:count])
    kept: Tensor = torch.tensor(list(dict.fromkeys(torch.cat(chosen).tolist()))[: max(count, len(show))])
    # A prefix of an order at random is a sample at random, though some of it may be among the worst, too.
    sample = torch.cat([order[torch.isin(order, kept).cumprod(0).bool()] for order in drawn])
    return kept.sort().values, sample


def choose_episodes(split: Split, count: int, stream: Stream) -> Tensor:
    """The episodes to hold whole: new ones, the least supported first, and recorded ones where there are no others."""
    table = split.made if split.made is not None and _has_episodes(split.made) else None
    if table is None and not split.elsewhere and _has_episodes(split.known):
        table = split.known
    if table is None or table.episode is None:
        return torch.zeros(0, dtype=torch.long)
    numbers, place, steps = table.episode.unique(return_inverse=True, return_counts=True)
    support = table.provenance.get("support")
    if support is None:
        order = stream.child("episodes").permutation(len(numbers))
    else:
        least = torch.ones(len(numbers), device=support.device).scatter_reduce(0, place, support, "amin")
        order = least.argsort(stable=True)
    room = min(count, LARGEST // 2 // split.row_bytes)
    order = order[(numbers[order] >= 0) & (steps[order] <= room)]
    kept: Tensor = numbers[order[steps[order].cumsum(0) <= room]].sort().values
    return kept


def _has_episodes(table: Transitions) -> bool:
    return table.episode is not None and bool((table.episode >= 0).any())


def pack_rows(split: Split, numbers: Tensor, sample: Tensor, graph: LocalGraph) -> dict[str, Any]:
    """Rows (M,) of the table with all that the page shows of them, arrays as base64; which of them are a sample."""
    data = split.data
    shown, made = data[numbers], torch.isin(numbers, split.made_numbers)
    values = torch.cat([shown.rows, shown.next_state], 1)
    parents = len(graph.parents)
    donor = torch.full((len(shown), parents), -1, device=data.device)
    exact = torch.zeros(len(shown), parents, dtype=torch.bool, device=data.device)
    base, given = torch.full_like(values, torch.nan), torch.full_like(values, torch.nan)
    main = torch.full((len(shown),), -1, device=data.device)
    episode = torch.full_like(donor, -1)
    if bool(made.any()):
        found = origins(split.known, shown[made], graph)
        whole = torch.cat([split.known.rows, split.known.next_state], 1)
        main[made], exact[made] = main_donors(found), found.exact
        base[made] = whole[main[made]]
        owner = torch.empty(values.shape[1], dtype=torch.long, device=data.device)
        for number, name in enumerate(graph.parents):
            columns = list(graph.factors[name])
            owner[columns] = number
            if number < len(graph.children):
                owner[[graph.width + column for column in columns]] = number
        given[made] = whole[found.donor[:, owner], torch.arange(values.shape[1], device=data.device)]
        donor[made] = split.known_numbers[found.donor]
        main[made] = split.known_numbers[main[made]]
        if split.known.episode is not None:
            episode[made] = split.known.episode[found.donor]
    masks, mask = torch.unique(graph.mask(shown.rows), dim=0, return_inverse=True)
    nothing = torch.full((len(shown),), torch.nan, device=data.device)
    notes = {name: shown.provenance.get(name, nothing) for name in ("support", "disagreement")}
    notes["disagreement"] = torch.where(made, notes["disagreement"], torch.nan)
    none = torch.full_like(numbers, -1)
    one = recipe_number(str(data.source.get("recipe")))  # of all rows, where they do not say it themselves
    recipe = shown.provenance.get("recipe", torch.where(made, one, 0))
    return {
        "number": packed(split.named(numbers).int()),
        "made": packed(made.to(torch.uint8)),
        "sample": packed(torch.isin(numbers, sample).to(torch.uint8)),
        "recipe": packed(recipe.int()),
        "episode": packed((none if shown.episode is None else shown.episode).int()),
        "step": packed((none if shown.step is None else shown.step).int()),
        "confirmed": packed(shown.provenance.get("confirmed", none).int()),
        "reward": packed(nothing if shown.reward is None else shown.reward),
        "terminal": packed(shown.terminal.to(torch.uint8)),
        "support": packed(notes["support"].float()),
        "disagreement": packed(notes["disagreement"].float()),
        "mask": packed(mask.int()),
        "goal": packed(nothing[:, None][:, :0] if shown.goal is None else shown.goal),
        "values": packed(values),
        "base": packed(base),
        "given": packed(given),
        "main": packed(split.named(main).int()),
        "donor": packed(split.named(donor).int()),
        "exact": packed(exact.to(torch.uint8)),
        "donorEpisode": packed(episode.int()),
        "masks": [one.nonzero().tolist() for one in masks != graph.sparsest.to(masks.device)],  # what differs from it
        "recipes": ["recorded", *BUILT_IN],
    }


def packed(array: Tensor) -> dict[str, Any]:
    """An array as text: its type, its shape and its bytes."""
    values: np.ndarray[Any, Any] = array.cpu().contiguous().numpy()
    kind = {"float32": "f4", "int32": "i4", "uint8": "u1"}[str(values.dtype)]
    return {"type": kind, "shape": list(values.shape), "data": base64.b64encode(values.tobytes()).decode()}
