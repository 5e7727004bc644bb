"""The table of everything that is shipped: certified anew on a policy of your choice, printed, drawn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from grpo_jax.kl.estimators import name_of
from grpo_jax.oracle import catalogue
from grpo_jax.oracle.catalogue import Configuration
from grpo_jax.oracle.certificate import distance_in_words
from grpo_jax.oracle.judgement import Record
from grpo_jax.oracle.picture import picture
from grpo_jax.oracle.space import count_completions, sizes_in_words
from grpo_jax.oracle.sweep import evaluated, sweep

SMALLEST = 1e-16
"""Where the picture's colours begin."""


def certify_shipped(
    estimator: str | None = None, seed: int = 0, vocabulary_size: int = 3, max_tokens: int = 3
) -> list[Record]:
    """Certifies every shipped configuration, on-policy and off-policy, on one random policy.

    Args:
        estimator: only the KL terms of this one, by the beginning of its name; None: everything.
        seed: of policy, reference, sampler and rewards.
        vocabulary_size: number of token ids, V; token 0 ends a completion.
        max_tokens: longest completion, T.

    Returns:
        KL terms under all reductions, then advantages under all rules for degenerate groups, then the rest.

    Raises:
        ValueError: no such estimator, or more completions or groups than can be listed, with their number.
    """
    if vocabulary_size < 2 or max_tokens < 1:
        raise ValueError(f"certify: vocabulary {vocabulary_size} and length {max_tokens}; give at least 2 and 1")
    configurations = chosen(estimator)
    count = count_completions(vocabulary_size, max_tokens, (0,))
    sizes = sizes_in_words(count, {each.group_size for each in configurations})
    instances = evaluated((seed,), vocabulary_size, max_tokens)
    records = []
    with Progress(transient=True) as progress:
        task = progress.add_task(f"certifying over {sizes}", total=len(configurations))
        for _, found in sweep(configurations, instances):
            records += found
            progress.advance(task)
    return records


def chosen(estimator: str | None = None) -> list[Configuration]:
    """Returns the configurations of `certify_shipped`."""
    if estimator is None:
        return [*catalogue.kl_product()[0], *catalogue.group_product()[0], *catalogue.covering()[0]]
    names = [*(name_of(each) for each in catalogue.ESTIMATORS), "full"]
    matching = [name for name in names if name == estimator or name.startswith(f"{estimator}(")]
    if not matching:
        raise ValueError(f"certify: estimator is {estimator!r}; choose one of {', '.join(names)}")
    return catalogue.kl_product(matching)[0]


def print_records(records: Sequence[Record], console: Console | None = None) -> None:
    """Prints KL terms under the plainest reduction, advantages beside the plainest placement, and how many agree.

    Args:
        records: on-policy and off-policy in turn.
        console: where to print; None: standard output.
    """
    console = console or Console()
    pairs = list(zip(records[::2], records[1::2], strict=True))
    console.print(_terms([(on, off) for on, off in pairs if _is_plain(on) and on.group_size == 2]))
    rules = [on for on, _ in pairs if on.estimator == "k1" and on.placement == "to_go" and _is_grouped(on)]
    if len({on.advantage for on in rules}) > 1:
        console.print(_groups(rules))
    wrong = [record for record in records if record.wrong]
    for record in wrong:
        what = ", ".join(f"{name} {value}" for name, value in zip(record._fields[:11], record[:11], strict=True))
        console.print(f"[bold red]NOT as declared[/bold red]: {what}: {record.sentence}")
    agreeing = sum(record.agrees for record in records)
    counts = f"{agreeing} as declared, {len(wrong)} not"
    cautious = len(records) - agreeing - len(wrong)
    if cautious:
        counts += f", {cautious} that declare nothing and follow something on this policy, which is too simple for them"
    console.print(f"{len(pairs)} configurations, {len(records)} findings on-policy and off-policy: {counts}")


def heatmap(records: Sequence[Record], path: str | Path | None = None) -> Any:
    """Returns a Figure with the relative distance of every KL term to every target as colours.

    Args:
        records: as of `certify_shipped`; only those under the plainest reduction, advantage and surrogate are drawn.
        path: where to save the picture; its suffix decides the format.
    """
    drawn = {
        (_made_of(record), record.behaviour): record
        for record in records
        if _is_plain(record) and record.group_size == 2
    }
    on = [made_of for made_of, behaviour in drawn if behaviour == "on"]
    figure = picture(11, 2 + 0.16 * len(on))
    for axes, behaviour in zip(figure.subplots(1, 2, sharey=True), ("on", "off"), strict=True):
        rows = [drawn[made_of, behaviour] for made_of in on]
        distances = [[record.distance, *record.distances.values()] for record in rows]
        values = [[_colour(distance) for distance in row] for row in distances]
        image = axes.imshow(values, vmin=np.log10(SMALLEST), vmax=0, cmap="viridis", aspect="auto")
        labels = ["what it declares", *(name.replace("_", " ") for name in rows[0].distances)]
        axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right")
        axes.set_title(f"{behaviour}-policy")
    figure.axes[0].set_yticks(range(len(on)), [", ".join(made_of) for made_of in on], fontsize=6)
    figure.colorbar(image, ax=figure.axes, label="log10 of the relative distance; dark: follows it")
    if path is not None:
        figure.savefig(path)
    return figure


def _made_of(record: Record) -> tuple[str, str, str, str]:
    return record.estimator, record.placement, record.granularity, record.importance


def _colour(distance: float | None) -> float:
    return np.nan if distance is None else float(np.log10(max(distance, SMALLEST)))


def _is_plain(record: Record) -> bool:
    first = (catalogue.ADVANTAGES[0], catalogue.DEGENERATE[0])
    return _is_grouped(record) and (record.advantage, record.degenerate) == tuple(part.name for part in first)


def _is_grouped(record: Record) -> bool:
    first = (catalogue.SURROGATES[0], catalogue.REDUCTIONS[0])
    return not record.extras and (record.surrogate, record.reduction) == tuple(part.name for part in first)


def _terms(pairs: Sequence[tuple[Record, Record]]) -> Table:
    table = Table(title="Which gradient a KL term follows", caption="in brackets: relative distance to it")
    for heading in ("estimator", "placement", "granularity", "importance", "on-policy", "off-policy"):
        table.add_column(heading)
    table.add_column("variance on", justify="right")
    table.add_column("off", justify="right")
    for made_of, (on, off) in {_made_of(pair[0]): pair for pair in pairs}.items():
        table.add_row(*made_of, _follows(on), _follows(off), f"{on.variance:.2g}", f"{off.variance:.2g}")
    return table


def _groups(records: Sequence[Record]) -> Table:
    table = Table(title="What advantage and rule for degenerate groups do, k1 to go, on-policy")
    for heading in ("advantage", "degenerate groups", "KL term", "reward: distance to the declared E[R]"):
        table.add_column(heading)
    for record in {(each.advantage, each.degenerate): each for each in records}.values():
        reward = record.reward_distance
        words = "no known multiple of it is declared" if reward is None else distance_in_words(reward)
        table.add_row(record.advantage, record.degenerate, _follows(record), words)
    return table


def _follows(record: Record) -> str:
    if record.distance is not None:
        return f"{record.declared} ({distance_in_words(record.distance)})"
    value, name = min((value, name) for name, value in record.distances.items() if value is not None)
    return f"none ({distance_in_words(value)} from {name})"
