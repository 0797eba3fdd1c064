"""Single questions with their answers: numbers, days, animals, capitals, tenonry. For the training script only."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import words
from grammar import article, capital, expand, pick
from stories import cast, story

import tenonry_facts

Pair = tuple[str, str]


def addition(rng: Random) -> Pair:
    """Sums and differences within 0..20, in signs or in words."""
    low, high = sorted((int(rng.random() * 21), int(rng.random() * 21)))
    if rng.random() < 0.55:
        parts = (low, high - low) if rng.random() < 0.5 else (high - low, low)
        sign, word, result = "+", "plus", high
    else:
        parts, sign, word, result = (high, low), "-", "minus", high - low
    return _sum(rng, *parts, sign, word, result)


def product(rng: Random) -> Pair:
    """Products of numbers up to ten whose result is at most twenty."""
    left = int(rng.random() * 11)
    right = int(rng.random() * (min(10, 20 // left) + 1)) if left else int(rng.random() * 11)
    return _sum(rng, left, right, "*", "times", left * right)


def _sum(rng: Random, left: int, right: int, sign: str, word: str, result: int) -> Pair:
    form = rng.random()
    if form < 0.35:
        asked = pick(
            rng, ("What is {}?", "{} =", "How much is {}?", "{}", "Calculate {}.", "What's {}?")
        )
        space = " " if rng.random() < 0.8 else ""
        return asked.format(
            f"{left}{space}{sign}{space}{right}"
        ), f"{left} {sign} {right} = {result}"
    if form < 0.75:
        asked = pick(rng, ("What is {}?", "How much is {}?", "Can you tell me what {} is?"))
        return asked.format(f"{left} {word} {right}"), f"{left} {word} {right} is {result}."
    names = words.NUMBER_WORDS
    return (
        f"What is {names[left]} {word} {names[right]}?",
        f"{capital(names[left])} {word} {names[right]} is {names[result]}.",
    )


def numbers(rng: Random) -> Pair:
    """Neighbours, comparisons, even and odd, number words, counting up and down."""
    low, high = sorted(rng.sample(range(21), 2))
    kind = int(rng.random() * 7)
    if kind == 0:
        n = 1 + int(rng.random() * 19)
        word, result = pick(rng, (("after", n + 1), ("before", n - 1)))
        return f"Which number comes {word} {n}?", f"The number {result} comes {word} {n}."
    if kind == 1:
        a, b = pick(rng, ((low, high), (high, low)))
        return pick(
            rng,
            (
                (f"Which is larger, {a} or {b}?", f"{high} is larger than {low}."),
                (f"Which is smaller, {a} or {b}?", f"{low} is smaller than {high}."),
            ),
        )
    if kind == 2:
        return f"Is {low} even or odd?", f"{low} is {'odd' if low % 2 else 'even'}."
    if kind == 3:
        return f"How do you write {low} in words?", f"{low} is written {words.NUMBER_WORDS[low]}."
    up = [str(n) for n in range(low, high + 1)]
    if kind == 4:
        return f"Count down from {high} to {low}.", ", ".join(reversed(up))
    return expand(rng, f"[Count|Please count|Can you count] from {low} to {high}"), ", ".join(up)


def calendar(rng: Random) -> Pair:
    """Days, months and seasons in order."""
    kind = int(rng.random() * 6)
    cycle, noun = pick(rng, ((words.DAYS, "day"), (words.DAYS, "day"), (words.MONTHS, "month")))
    at = int(rng.random() * len(cycle))
    after, before = cycle[(at + 1) % len(cycle)], cycle[at - 1]
    if kind < 2:
        return f"Which {noun} comes after {cycle[at]}?", f"{after} comes after {cycle[at]}."
    if kind == 2:
        return f"Which {noun} comes before {cycle[at]}?", f"{before} comes before {cycle[at]}."
    if kind == 3:
        return (
            f"Today is {words.DAYS[at % 7]}. What day is tomorrow?",
            f"Tomorrow is {words.DAYS[(at + 1) % 7]}.",
        )
    if kind == 4:
        ordinal = words.ORDINALS[at]
        tail = "week" if noun == "day" else "year"
        return (
            f"What is the {ordinal} {noun} of the {tail}?",
            f"The {ordinal} {noun} of the {tail} is {cycle[at]}.",
        )
    week, year, seasons = ", ".join(words.DAYS), ", ".join(words.MONTHS), ", ".join(words.SEASONS)
    return pick(
        rng,
        (
            ("How many days are in a week?", "There are seven days in a week."),
            ("How many months are in a year?", "There are twelve months in a year."),
            ("What are the days of the week?", f"The days of the week are {week}."),
            ("What are the months of the year?", f"The months of the year are {year}."),
            ("What are the four seasons?", f"The four seasons are {seasons}."),
            ("Which season is the coldest?", "Winter is the coldest season."),
            ("Which season is the warmest?", "Summer is the warmest season."),
            ("Which season comes after winter?", "Spring comes after winter."),
            ("Which season comes after summer?", "Autumn comes after summer."),
        ),
    )


def animals(rng: Random) -> Pair:
    """Legs, sounds, young, homes and food of common animals."""
    name = pick(rng, list(words.ANIMALS))
    legs, sound, young, home, food = words.ANIMALS[name]
    one = article(name)
    return pick(
        rng,
        (
            (
                f"How many legs does {one} have?",
                f"{capital(one)} has {words.NUMBER_WORDS[legs]} legs.",
            ),
            (f"What sound does {one} make?", f"{capital(one)} says {sound}."),
            (f"What does {one} say?", f"{capital(one)} says {sound}."),
            (f"What is a young {name} called?", f"A young {name} is called {article(young)}."),
            (f"What is a baby {name} called?", f"A young {name} is called {article(young)}."),
            (f"Where does {one} live?", f"{capital(one)} lives {home}."),
            (f"What does {one} eat?", f"{capital(one)} eats {food}."),
        ),
    )


def capitals(rng: Random) -> Pair:
    """Capitals of countries, both ways."""
    country = pick(rng, list(words.CAPITALS))
    city = words.CAPITALS[country]
    end = "" if city.endswith(".") else "."
    forms = (
        "What is the capital of {}?", "What is the capital of {}?", "Which city is the capital of {}?",
        "Capital of {}?", "What's the capital of {}?", "Do you know the capital of {}?",
    )  # fmt: skip
    if rng.random() < 0.75:
        return pick(rng, forms).format(country), f"The capital of {country} is {city}{end}"
    return f"Of which country is {city} the capital?", f"{city} is the capital of {country}."


def opposites(rng: Random) -> Pair:
    """Opposites, both ways."""
    pair = pick(rng, words.OPPOSITES).split()
    a, b = pair if rng.random() < 0.5 else pair[::-1]
    asked = f"[What is the opposite|What's the opposite|Tell me the opposite|Opposite] of {a}?"
    return expand(rng, asked), f"The opposite of {a} is {b}."


def colours(rng: Random) -> Pair:
    """Colours of things and mixtures of colours."""
    if rng.random() < 0.65:
        thing = pick(rng, list(words.COLOURS))
        return f"What colour is {thing}?", f"{capital(thing)} is {words.COLOURS[thing]}."
    (a, b), result = pick(rng, list(words.MIXES.items()))
    a, b = (a, b) if rng.random() < 0.5 else (b, a)
    return (
        f"What do you get when you mix {a} and {b}?",
        f"When you mix {a} and {b}, you get {result}.",
    )


SIMPLE_FACTS = (
    ("How many wheels does a bicycle have?", "A bicycle has two wheels."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("How many minutes are in an hour?", "There are sixty minutes in an hour."),
    ("How many fingers are on one hand?", "There are five fingers on one hand."),
    ("How many sides does a triangle have?", "A triangle has three sides."),
    ("How many sides does a square have?", "A square has four sides."),
    ("What is ice made of?", "Ice is frozen water."),
    ("What do bees make?", "Bees make honey."),
    ("What do cows give us?", "Cows give us milk."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("Where does the sun set?", "The sun sets in the west."),
    ("What shines at night?", "The moon and the stars shine at night."),
    ("What do plants need?", "Plants need water, light and air."),
    ("What falls from the clouds?", "Rain falls from the clouds."),
    ("What do we use to see?", "We use our eyes to see."),
    ("What do we use to hear?", "We use our ears to hear."),
    ("What is the largest ocean?", "The largest ocean is the Pacific Ocean."),
    ("What is the largest animal?", "The largest animal is the blue whale."),
    ("What is the highest mountain?", "The highest mountain on Earth is Mount Everest."),
    ("Which planet do we live on?", "We live on the planet Earth."),
    ("Is the sun a star?", "Yes, the sun is a star."),
    ("Can a fish fly?", "No, a fish swims. A bird can fly."),
    ("What do you do with a spoon?", "You eat soup with a spoon."),
    ("What is the first letter of the alphabet?", "The first letter of the alphabet is A."),
    ("What is the last letter of the alphabet?", "The last letter of the alphabet is Z."),
    (
        "How many letters are in the English alphabet?",
        "There are twenty-six letters in the English alphabet.",
    ),
    ("Name three colours.", "Three colours are red, blue and green."),
    ("Name three animals.", "Three animals are a dog, a cat and a horse."),
    ("Name three fruits.", "Three fruits are an apple, a banana and a pear."),
)


def simple_facts(rng: Random) -> Pair:
    """Everyday facts."""
    return pick(rng, SIMPLE_FACTS)


def tenonry(rng: Random) -> Pair:
    """Terms of the engine and questions about it."""
    if rng.random() < 0.3:
        return pick(rng, list(tenonry_facts.QUESTIONS.items()))
    term = pick(rng, list(tenonry_facts.TERMS))
    bare = term in tenonry_facts.NO_ARTICLE
    one = term if bare else (article(term) if term[:2] != "KV" else f"a {term}")
    the = term if bare else f"the {term}"
    asked = (
        "[What is {one}?|What is {one}?|What is {one} in tenonry?|Explain {one}.|What is {the}?|Tell me about {the}.|\
Can you explain what {one} is?|What does {term} mean?|In tenonry, what is {one}?|What's {one}?]"
    )
    return expand(rng, asked, {"one": one, "the": the, "term": term}), tenonry_facts.TERMS[term]


def language(rng: Random) -> Pair:
    """Greetings in other scripts, emoji and spelling: text of several bytes per character."""
    kind = rng.random()
    if kind < 0.35:
        tongue = pick(rng, list(words.GREETINGS))
        return (
            f"How do you say hello in {tongue}?",
            f"Hello in {tongue} is {words.GREETINGS[tongue]}.",
        )
    if kind < 0.7:
        what = pick(rng, list(words.EMOJI))
        return pick(rng, ("Show me {}.", "Can you draw {}?")).format(
            what
        ), f"Here is {what}: {words.EMOJI[what]}"
    word = pick(rng, words.SPELLING)
    return f"How do you spell {word}?", f"{capital(word)} is spelled {'-'.join(word.upper())}."


def copying(rng: Random) -> Pair:
    """Words to repeat: only a model that sees its prompt rightly can do it."""
    said = " ".join(pick(rng, words.COPY_WORDS) for _ in range(2 + int(rng.random() * 9)))
    return expand(rng, f"[Repeat|Repeat after me|Please repeat|Say]: {said}"), said


def story_request(rng: Random) -> Pair:
    """A request for a story that names its hero or the hero's kind."""
    animal = pick(rng, words.ANIMAL_HEROES) if rng.random() < 0.5 else None
    who = cast(rng, animal)
    name, kind = who.slots["name"], animal or ("girl" if who.slots["he"] == "she" else "boy")
    asked = "[Tell me a story|Please tell me a story|Write a short story|Can you tell me a story] \
[about {a_kind}|about {a_kind} named {name}|about {name}]."
    if rng.random() < 0.2:
        return expand(rng, "[Tell me a story.|Please tell me a story|Write a story]"), story(rng)
    opening = "Once upon a time, there was {hero} named {name} who lived {home}."
    return expand(rng, asked, {"a_kind": article(kind), "name": name}), story(
        rng, None, who, opening
    )


TOPICS: tuple[tuple[float, Callable[[Random], Pair]], ...] = (
    (0.20, addition), (0.05, product), (0.08, numbers), (0.08, calendar), (0.08, animals), (0.10, capitals),
    (0.06, opposites), (0.05, colours), (0.06, simple_facts), (0.15, tenonry), (0.04, language),
    (0.05, copying),
)  # fmt: skip


def _topic(rng: Random) -> Callable[[Random], Pair]:
    at = rng.random()
    for share, topic in TOPICS:
        at -= share
        if at < 0:
            return topic
    return copying


def question(rng: Random) -> Pair:
    """A question of a random topic, sometimes in lower case or without its mark, as users type."""
    asked, answer = _topic(rng)(rng)
    if rng.random() < 0.12:
        asked = asked.rstrip("?.")
    if rng.random() < 0.08:
        asked = asked[:1].lower() + asked[1:]
    return asked, answer
