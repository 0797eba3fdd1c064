"""Short stories of the training corpus: a cast is drawn, then a plot is filled in. For the training script only."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import words
from grammar import article, capital, expand, new_name, pick
from plots import LESSONS, PLOTS, SUBJECTS

OPENINGS = (
    "Once upon a time, there was {hero} named {name}. {name} lived {home}.",
    "Once upon a time, there was {hero} named {name} who lived {home}.",
    "Once upon a time, {hero} named {name} lived {home}.",
    "There once was {hero} named {name}, who lived {home}.",
    "Long ago, {home}, there lived {hero} named {name}.",
    "This is the story of {name}, {hero} who lived {home}.",
)
ENDINGS = (
    "And so {name} learned that {lesson}.",
    "That day {name} learned that {lesson}.",
    "And {name} never forgot that {lesson}.",
)


@dataclass(frozen=True, slots=True)
class Cast:
    """Persons and places of the story: the slots that the plots use, and `animal` if the hero is one."""

    slots: dict[str, str]
    animal: str | None


def _pronouns(girl: bool, prefix: str = "") -> dict[str, str]:
    he, him, his = ("she", "her", "her") if girl else ("he", "him", "his")
    forms = {f"{prefix}he": he, f"{prefix}him": him, f"{prefix}his": his}
    return forms | {capital(key): capital(value) for key, value in forms.items()}


def cast(rng: Random, animal: str | None = None, name: str | None = None) -> Cast:
    """Draw a cast; `animal` makes the hero that animal, `name` fixes the hero's name."""
    girl = rng.random() < 0.5 if name is None else name in words.GIRLS
    if name is None:
        known = words.GIRLS if girl else words.BOYS
        name = pick(rng, known) if rng.random() < 0.85 else new_name(rng, words.SYLLABLES)
    friend_girl = rng.random() < 0.5
    friend = pick(rng, [n for n in (words.GIRLS if friend_girl else words.BOYS) if n != name])
    elder_she = rng.random() < 0.5
    kind = animal or ("girl" if girl else "boy")
    place = pick(rng, words.PLACES)
    slots = {
        "name": name, "friend": friend, "home": pick(rng, words.HOMES), "place": place,
        "hero": article(f"{pick(rng, words.TRAITS)} {'young ' if animal else ''}{kind}"),
        "elder": pick(rng, words.ELDERS_SHE if elder_she else words.ELDERS_HE),
        "place2": pick(rng, [other for other in words.PLACES if other != place]),
        "thing": pick(rng, words.THINGS), "food": pick(rng, words.FOODS), "helper": pick(rng, words.HELPERS),
        "sun": pick(rng, words.SUN), "grey": pick(rng, words.GREY),
    }  # fmt: skip
    slots |= _pronouns(girl) | _pronouns(friend_girl, "f") | _pronouns(elder_she, "e")
    slots["a_helper"] = article(slots["helper"])
    slots["a_food"] = article(slots["food"])
    slots["his_friend_smile"] = f"{slots['fhe']} smiled"
    return Cast(slots, animal)


def body(rng: Random, plot: str, who: Cast) -> str:
    """The plot's paragraphs for this cast, without opening and lesson."""
    text = expand(rng, PLOTS[plot], who.slots).strip()
    return "\n\n".join(" ".join(part.split("\n")) for part in text.split("\n\n"))


def story(
    rng: Random, plot: str | None = None, who: Cast | None = None, opening: str | None = None
) -> str:
    """A whole story: opening, plot, lesson; now and then 'The end.'."""
    plot = plot or pick(rng, list(PLOTS))
    if who is None:
        who = cast(rng, pick(rng, words.ANIMAL_HEROES) if rng.random() < 0.4 else None)
    first = opening or (
        OPENINGS[int(rng.random() * 3)] if rng.random() < 0.75 else pick(rng, OPENINGS)
    )
    last = expand(rng, pick(rng, ENDINGS), who.slots | {"lesson": LESSONS[plot]})
    end = " The end." if rng.random() < 0.2 else ""
    return f"{expand(rng, first, who.slots)} {body(rng, plot, who)} {last}{end}"


def titled_story(rng: Random) -> str:
    """A story under a title line."""
    plot = pick(rng, list(PLOTS))
    who = cast(rng, pick(rng, words.ANIMAL_HEROES) if rng.random() < 0.4 else None)
    subject = SUBJECTS[plot].replace("{thing}", who.slots["thing"])
    return f"{who.slots['name']} and {subject}\n\n{story(rng, plot, who)}"


def long_story(rng: Random) -> str:
    """Two to four chapters with one hero, so that names must be remembered over many hundred tokens."""
    who = cast(rng, pick(rng, words.ANIMAL_HEROES) if rng.random() < 0.4 else None)
    plots = list(PLOTS)
    rng.shuffle(plots)
    parts = [f"Chapter one\n\n{story(rng, plots[0], who)}"]
    for number, plot in zip(
        ("two", "three", "four")[: 1 + int(rng.random() * 3)], plots[1:], strict=False
    ):
        again = cast(rng, who.animal, who.slots["name"])
        again.slots.update(
            {key: who.slots[key] for key in ("friend", "fhe", "fhim", "fhis", "Fhe", "home")}
        )
        again.slots["his_friend_smile"] = who.slots["his_friend_smile"]
        opening = "{name} still lived {home}."
        parts.append(f"Chapter {number}\n\n{story(rng, plot, again, opening)}")
    return "\n\n".join(parts)


PORTRAIT = """\
[Hello, my name is|Hi, my name is|My name is|Hello! I am called] {name}[, and I am|. I am] {age} years old.
I live {home} with my {elder} and a {pet} named {pet_name}. [My favourite colour is {colour}.|I like the
colour {colour} best.] [Every day|On Sundays|After school|In summer] I go to the {place} with my friend
{friend}. {Fhe} likes {food}, and I like it too. [One day I want to be {job}.|When I grow up, I want to be
{job}.] {pet_name} always [waits for me at the door|comes with us|sleeps next to my bed]. [Goodbye for
now!|That is all about me.|What about you?]"""
JOBS = (
    "a teacher",
    "a doctor",
    "a baker",
    "a sailor",
    "a gardener",
    "a singer",
    "a pilot",
    "a farmer",
)


def portrait(rng: Random) -> str:
    """A person's introduction, in the first person."""
    slots = cast(rng).slots | {
        "age": words.NUMBER_WORDS[5 + int(rng.random() * 8)],
        "pet": pick(rng, ("dog", "cat", "rabbit", "duck", "goat", "horse")),
        "pet_name": new_name(rng, words.SYLLABLES)
        if rng.random() < 0.5
        else pick(rng, words.GIRLS + words.BOYS),
        "colour": pick(
            rng, ("red", "blue", "green", "yellow", "orange", "purple", "pink", "white")
        ),
        "job": pick(rng, JOBS),
    }
    return " ".join(expand(rng, PORTRAIT, slots).split("\n"))
