"""The verdict of a check: the recipe worth trying, and why, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mocoda.analysis.advice import MATCHED, Advice, Law, RecipeSamples

FEW_ROWS = 1_000  # under which nothing here is certain
LITTLE_GAIN = 1.5  # times the recorded cells: not worth augmenting for
COUNTABLE = 0.5  # recorded cells a row: with more, most rows fill one of their own, and cells count nothing
DOSE = 4  # generated rows for each recorded one, by `mocoda paper dose`
NEAR, FAR = 3.0, 10.0  # times the held-out disagreement: as good as recorded, and hardly known
BADLY_FITTED = 0.1  # nats a row behind a simpler density
HARDLY_TOLD = 0.55  # AUC up to which a classifier hardly tells drawn from recorded parent sets
BADLY_PREDICTED = 0.3  # standard deviations of a step: recorded next states are better than a model's


def judge(advice: Advice) -> tuple[str | None, tuple[str, ...]]:
    """The recipe worth trying, and why."""
    reasons = list(_doubts(advice))
    if advice.missing:
        reasons += [f"{str(edge)[0].upper()}{str(edge)[1:]}." for edge in advice.missing]
        reasons.append(
            "The graph lacks edges that the data shows: recombined rows would get impossible next states. "
            "Add these edges and check again before augmenting."
        )
    unclear = [child for child in advice.children if child.outside > 0 and not child.missing]
    reasons += [
        f"Factors outside {child.name}'s parents explain {100 * child.outside:.0f}% of its error, though no single "
        "factor does. Give it more parents and check again."
        for child in unclear
    ]
    if advice.missing or unclear:
        return None, tuple(reasons)
    if len(advice.sets) == 1:
        reasons.append(
            f"There is nothing to recombine: one parent set ({', '.join(advice.sets[0].factors)}) covers every factor. "
            "If some factors do not depend on each other, or only in some states, say so in the graph."
        )
        return None, tuple(reasons)
    countable = advice.recorded_cells < COUNTABLE * advice.rows
    if countable and advice.times_larger < LITTLE_GAIN:
        reasons.append(
            f"There is little to gain: recombining reaches only {advice.times_larger:.2g} times what is recorded. "
            "Train on the recorded rows."
        )
        return "emp", (*reasons, *choose_density(advice)[1])
    if any(child.judged for child in advice.children):
        reasons.append("No missing edge was found.")
    if countable or advice.times_larger >= LITTLE_GAIN:
        reasons.append(f"Recombining reaches {advice.times_larger:.3g} times what is recorded.")
    else:
        reasons.append(
            "How much recombining reaches cannot be counted: with so many columns, most rows fill a cell of their own."
        )
    recipe, why = _choice({one.name: one for one in advice.recipes}, advice)
    dose = [] if recipe is None else [_dose(advice)]
    return recipe, (*reasons, *why, *choose_density(advice)[1], *dose)


def choose_density(advice: Advice) -> tuple[str | None, list[str]]:
    """The density for recipe mocoda, by which of them keeps the recorded distribution of parent sets, and why."""
    mixture, matched = (_worst(advice.laws, name) for name in ("mocoda", MATCHED))
    if mixture is None:
        return None, []
    told = f"a classifier tells a mixture's ({', '.join(mixture.factors)}) from recorded ones, AUC {_auc(mixture)}"
    if mixture.auc <= HARDLY_TOLD or mixture.low <= 0.5:
        why = f"a classifier hardly tells its parent sets from recorded ones, AUC {_auc(mixture)} at most"
        return "mixture", [f'For recipe mocoda, density="mixture" will do: {why} (0.5 is perfect).']
    if matched is None:
        return "mixture", [f"Recipe mocoda does not keep the recorded distribution: {told}. Try more components."]
    if matched.auc < mixture.auc:
        return "matched", [
            f'For recipe mocoda, take density="matched": {told} (0.5 is perfect). Recorded ones that are matched give '
            f"{_auc(matched)} at most."
        ]
    return "mixture", [
        f"Recipe mocoda does not keep the recorded distribution: {told}, and matched recorded ones are no better, "
        f"{_auc(matched)}. Record more rows, or try more components."
    ]


def _auc(law: Law) -> str:
    return f"{law.auc:.2f} [{law.low:.2f}, {law.high:.2f}]"


def _worst(laws: Iterable[Law], recipe: str) -> Law | None:
    return max((law for law in laws if law.recipe == recipe), key=lambda law: law.auc, default=None)


def _dose(advice: Advice) -> str:
    """How many rows to generate: what was enough in 2D Navigation, whatever the check said."""
    return (
        f"Generate about {DOSE * advice.rows:,} rows, {DOSE} for each recorded one: where it was measured, fewer "
        "helped less and up to 64 did no harm."
    )


def _doubts(advice: Advice) -> Iterable[str]:
    if advice.rows < FEW_ROWS:
        yield f"{advice.rows:,} rows are few: with less than {FEW_ROWS:,}, nothing here is certain."
    for one in advice.sets:
        if one.gain < -BADLY_FITTED:
            yield (
                f"The mixture of {', '.join(one.factors)} describes held-out rows worse than a simpler density does "
                f"(by {-one.gain:.2g} nats per row): what recipe mocoda draws of it is doubtful."
            )


def _choice(recipes: Mapping[str, RecipeSamples], advice: Advice) -> tuple[str | None, list[str]]:
    mocoda, exchanges = recipes["mocoda"], recipes["coda"].not_here is None
    worst = max(advice.children, key=lambda child: child.heldout_factored)
    assert mocoda.relative is not None and mocoda.strange is not None
    agreement = f"the ensemble disagrees {mocoda.relative:.2g} times as much on its samples as on held-out rows"
    why = []
    if mocoda.strange > 0.05:
        why.append(
            f"{100 * mocoda.strange:.0f}% of what recipe mocoda draws is under local graphs that hardly any recorded "
            "row has, where the model cannot know what happens: filter by disagreement."
        )
    if worst.heldout_factored > BADLY_PREDICTED:
        why.append(
            f"A small model's error on {worst.name} is {100 * worst.heldout_factored:.0f}% of a step's spread: it is "
            "noisy, or hard to learn, or lacks a parent that would need more rows to show. Only in the first case can "
            "a model be trusted."
        )
        if exchanges:
            why.append(
                "Worth trying: recipe coda, whose next states are recorded ones. Then mocoda, with a large model."
            )
            return "coda", why
    if mocoda.relative <= NEAR:
        why.append(f"Worth trying: recipe mocoda; {agreement}.")
        even = recipes["mocoda-u"]
        if even.relative is not None and even.relative <= NEAR:
            why.append("Also mocoda-u, which draws what is rare as often as what is common.")
        return "mocoda", why
    if mocoda.relative <= FAR:
        limit = f"--max-disagreement {NEAR * advice.disagreement:.2g}"
        why.append(f"Worth trying: recipe mocoda with {limit}; {agreement}, so leave out what the model does not know.")
        return "mocoda", why
    if exchanges:
        why.append(f"Worth trying: recipe coda, which needs no model; {agreement}, too much for recipe mocoda.")
        return "coda", why
    why.append(f"No recipe is worth trying yet: {agreement}. Record more rows, or narrow the parent sets.")
    return None, why
