"""The verdict of a check: the recipe worth trying, and why, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mocoda.analysis.advice import LOCAL_MIXTURE, MIXTURE, UNSTRATIFIED, VARIANTS, Advice, RecipeSamples

FEW_ROWS = 1_000  # under which nothing here is certain
LITTLE_GAIN = 1.5  # times the recorded cells: not worth augmenting for
COUNTABLE = 0.5  # recorded cells a row: with more, most rows fill one of their own, and cells count nothing
DOSE = 4  # generated rows for each recorded one, by `mocoda paper dose`
NEAR, FAR = 3.0, 10.0  # times the held-out disagreement: as good as recorded, and hardly known
BADLY_FITTED = 0.1  # nats a row behind a simpler density
HARDLY_TOLD = 0.55  # AUC up to which a classifier hardly tells drawn from recorded parent sets
FEW, SOME = 0.01, 0.05  # shares of rows that are a fault: with broken norms, and with anything else
SETTINGS = {
    "mocoda": "the defaults",
    UNSTRATIFIED: "stratified=False",
    LOCAL_MIXTURE: 'density="mixture"',
    MIXTURE: 'density="mixture", stratified=False',
}
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
        return "emp", (*reasons, *choose_settings(advice)[1])
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
    return recipe, (*reasons, *why, *choose_settings(advice)[1], *dose)


def choose_settings(advice: Advice) -> tuple[str | None, list[str]]:
    """How recipe mocoda is best drawn, one of VARIANTS, and why; None: it cannot be."""
    recipes = {one.name: one for one in advice.recipes}
    here = [name for name in VARIANTS if name in recipes and recipes[name].not_here is None]
    if not here:
        return None, []
    faults = {name: _faults(recipes[name], recipes["emp"], advice) for name in here}
    chosen = min(here, key=lambda name: (len(faults[name]), here.index(name)))
    said = f"For recipe mocoda, {_settings(chosen)}: "
    if faults[chosen]:
        said += f"even so, {'; '.join(faults[chosen])}."
    else:
        said += "its rows are as common as recorded ones, in ranges, norms, local graphs and parent sets."
    reasons = [said]
    for name in here:
        if name != chosen and faults[name]:
            reasons.append(f"Not with {SETTINGS[name]}: {'; '.join(faults[name])}.")
        elif name != chosen and name == MIXTURE:
            reasons.append(f"{SETTINGS[name]} would do, too.")
    if advice.min_support is not None:
        reasons.append(
            f"Add --min-support {advice.min_support:g}, which rejects most of the rows whose parts are rarer than "
            "99% of recorded ones."
        )
    return chosen, reasons


def _settings(name: str) -> str:
    return "keep the defaults" if name == "mocoda" else f"take {SETTINGS[name]}"


def _faults(one: RecipeSamples, recorded: RecipeSamples, advice: Advice) -> list[str]:
    """What is wrong with the rows that a recipe draws, in words."""
    assert one.unsupported is not None and one.strange is not None
    assert one.outside is not None and one.broken is not None
    usual = recorded.unsupported or 0.0
    faults = []
    if one.broken > FEW:
        vectors = " and ".join(f"({names})" for names, _ in one.vectors[:2])
        faults.append(f"{_share(one.broken)} of its rows break the length of the unit vector {vectors}")
    if one.outside > SOME:
        columns = " and ".join(f"{name} in {_share(share)}" for name, share in one.columns[:2])
        faults.append(f"{_share(one.outside)} leave a column's recorded range, such as {columns}")
    lost = [local for local in advice.local_graphs if local.recorded >= SOME]
    lost = [local for local in lost if local.drawn[one.name] < 0.5 * local.recorded]
    if lost:
        worst = max(lost, key=lambda local: local.recorded)
        faults.append(
            f"the local graph with {worst.links} is drawn in {_share(worst.drawn[one.name])} of the rows, and recorded "
            f"in {_share(worst.recorded)}"
        )
    if one.strange > SOME + (recorded.strange or 0.0):
        faults.append(f"{_share(one.strange)} are under local graphs that hardly any recorded row has")
    if one.unsupported > max(SOME, 2 * usual):
        faults.append(
            f"{_share(one.unsupported)} have a part that is rarer than 99% of those recorded where the same factors "
            f"are linked, and {_share(usual)} of the recorded rows do"
        )
    law = max((law for law in advice.laws if law.recipe == one.name), key=lambda law: law.auc, default=None)
    if law is not None and law.auc > HARDLY_TOLD and law.low > 0.5:
        told = f"a classifier tells its ({', '.join(law.factors)}) from recorded ones"
        faults.append(f"{told}, AUC {law.auc:.2f} [{law.low:.2f}, {law.high:.2f}], where 0.5 is perfect")
    return faults


def _share(share: float) -> str:
    return f"{100 * share:.3g}%"


def _dose(advice: Advice) -> str:
    """How many rows to generate: what was measured in 2D Navigation and HookSweep2, whatever the check said."""
    return (
        f"Generate about {DOSE * advice.rows:,} rows, {DOSE} for each recorded one: where it was measured, fewer "
        "helped less and up to 64 did no harm. On a robot with only 10,000 recorded rows, 64 helped most."
    )


def _doubts(advice: Advice) -> Iterable[str]:
    if advice.rows < FEW_ROWS:
        yield f"{advice.rows:,} rows are few: with less than {FEW_ROWS:,}, nothing here is certain."
    for one in advice.sets:
        if one.gain < -BADLY_FITTED:
            yield (
                f"The mixture of {', '.join(one.factors)} describes held-out rows worse than a simpler density does "
                f"(by {-one.gain:.2g} nats per row): what mixtures draw of it is doubtful, and so is support."
            )


def _choice(recipes: Mapping[str, RecipeSamples], advice: Advice) -> tuple[str | None, list[str]]:
    chosen, exchanges = choose_settings(advice)[0], recipes["coda"].not_here is None
    if chosen is None:
        absent = f"Recipe mocoda cannot be had: {recipes['mocoda'].not_here}"
        return ("coda" if exchanges else None), [absent]
    mocoda = recipes[chosen]
    worst = max(advice.children, key=lambda child: child.heldout_factored)
    assert mocoda.relative is not None
    agreement = f"the ensemble disagrees {mocoda.relative:.2g} times as much on its samples as on held-out rows"
    why: list[str] = []
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
