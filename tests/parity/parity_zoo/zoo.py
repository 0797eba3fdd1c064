"""One type from its configuration class to its outcomes: build, run the oracle, serve with each worker."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from parity_zoo import build, oracle, serve
from parity_zoo.oracle import Answer
from parity_zoo.prompts import Prompts, make_prompts
from parity_zoo.recipes import RECIPES, Recipe

MAX_SEEDS = 3


class Report(msgspec.Struct):
    """Results of one type. `unbuilt`: why there is no tiny model of it to serve."""

    name: str
    outcomes: dict[str, serve.Outcome] = {}
    unbuilt: str = ""
    architecture: str = ""
    parameters: int = 0
    seconds: float = 0.0
    is_telling: bool = True
    agrees_with_itself: bool = True
    recipe: Recipe = Recipe()


def report(name: str, workers: Sequence[str]) -> Report:
    """Build the type, and serve it with each worker. An undecided oracle leads to another seed."""
    prompts = make_prompts()
    with tempfile.TemporaryDirectory(prefix=f"zoo-{name.rpartition(':')[2]}-") as place:
        try:
            found, answers = _built(name, Path(place), prompts)
        except Exception as error:  # whatever the family raises is the reason
            text = " ".join(str(error).split())[:300]
            return Report(name, unbuilt=f"{type(error).__name__}: {text}")
        for _ in range(MAX_SEEDS):
            try:
                _serve(found, workers, Path(place), prompts, answers)
            except serve.CloseCall as close:
                undecided = str(close)
                seed = found.recipe.seed + 1
                found, answers = _with_recipe(
                    name, msgspec.structs.replace(found.recipe, seed=seed), Path(place), prompts
                )
            else:
                return found
    # Undecided with every seed: that is no accident of one of them.
    found.outcomes = {worker: serve.Outcome("wrong", undecided, worker) for worker in workers}
    return found


def _serve(
    found: Report, workers: Sequence[str], folder: Path, prompts: Prompts, answers: list[Answer]
) -> None:
    """Fill in the outcome of each worker; one that `auto` chose is not run twice. Raises CloseCall."""
    for worker in workers:
        known = [each for each in found.outcomes.values() if each.worker == worker]
        found.outcomes[worker] = (
            known[0] if known else serve.outcome(found.name, folder, worker, prompts, answers)
        )


def _built(name: str, folder: Path, prompts: Prompts) -> tuple[Report, list[Answer]]:
    """The first recipe that makes the tokens follow from the context, else the first of all."""
    first = None
    for recipe in RECIPES:
        found, answers = _with_recipe(name, recipe, folder, prompts)
        if found.is_telling:
            return found, answers
        first = first or recipe
    assert first is not None
    return _with_recipe(name, first, folder, prompts)


def _with_recipe(
    name: str, recipe: Recipe, folder: Path, prompts: Prompts
) -> tuple[Report, list[Answer]]:
    build.save(build.tiny_model(name, recipe), folder)
    model = oracle.load(name, folder)
    answers = oracle.answers(model, prompts.all)
    agrees = oracle.agrees_with_itself(model, max(answers, key=_length))
    if not agrees:
        for answer in answers:
            answer.prompt_logprobs = []  # each way of computing them gives others
    found = Report(
        name,
        architecture=type(model).__name__,
        parameters=model.num_parameters(),
        is_telling=oracle.is_telling(answers),
        agrees_with_itself=agrees,
        recipe=recipe,
    )
    return found, answers


def _length(answer: Answer) -> int:
    return len(answer.prompt)
