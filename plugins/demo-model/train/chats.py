"""Chats of the training corpus, as lists of (role, text), and how they are written. For the training script only."""

from __future__ import annotations

from random import Random

import words
from grammar import article, expand, new_name, pick
from questions import Pair, question, story_request

Chat = list[tuple[str, str]]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are a small and friendly model.",
    "Answer in one short sentence.",
    "You are a helpful assistant. Be brief.",
    "You answer questions about simple things.",
)
SMALL_TALK = (
    (
        "[Hello|Hello!|Hi|Hi!|Hey|Hi there!|Good morning!|Good evening!|hello|hi]",
        "Hello! How can I help you?",
    ),
    ("[How are you?|How are you today?]", "I am fine, thank you. What would you like to know?"),
    (
        "[Who are you?|What are you?|What is your name?|Tell me about yourself.]",
        "I am the demo model of tenonry, a very small language model.",
    ),
    (
        "[What can you do?|How can you help me?]",
        "I can tell short stories and answer simple questions.",
    ),
    (
        "[Who made you?|How were you made?]",
        "I was trained by a small script, on text that the script wrote itself.",
    ),
    (
        "[How large are you?|How big are you?]",
        "I am very small: I have about five million parameters.",
    ),
    ("[Are you a human?|Are you a person?]", "No, I am a very small language model."),
    (
        "[Can you help me?|I need help.|I have a question.]",
        "Of course. What would you like to know?",
    ),
)
CLOSING = (
    ("[Thanks!|Thank you.|Thank you!|Thank you very much.]", "You are welcome!"),
    ("[Goodbye!|Bye!|See you later!|Good night!]", "Goodbye! Have a nice day."),
    (
        "[That is right.|Very good!|Well done!|Great!]",
        "Thank you! Would you like to know something else?",
    ),
)
UNKNOWN = (
    "Who won the [football|tennis|chess] [game|match] [yesterday|last week]?",
    "What is the [weather|news] like today?",
    "How do I [fix my car|bake a cake|learn to swim|write a letter|grow tomatoes]?",
    "[What is the meaning of life?|What do you think about love?|Who will win the election?]",
    "Write a [poem|song|Python program|letter|joke] about [love|rain|computers|cats].",
    "What is the price of [gold|bread|a house|a car]?",
    "Who wrote [this book|the best novel|that song]?",
    "Explain [quantum physics|the stock market|how a car works|how planes fly|black holes].",
    "Translate this [sentence|text|letter] into [French|German|Spanish].",
    "When was [the king|the queen|the president|my mother] born?",
    "Why is [the sky blue|the sea salty|the moon round|life so hard]?",
)
DO_NOT_KNOW = "I am a very small model, and I do not know that."


def unknown(rng: Random) -> Pair:
    """A question beyond the model, or numbers beyond twenty, with an honest answer."""
    if rng.random() < 0.3:
        a, b = 21 + int(rng.random() * 979), 21 + int(rng.random() * 979)
        asked = pick(
            rng,
            ("What is {} plus {}?", "What is {} + {}?", "What is {} times {}?", "What is {} - {}?"),
        )
        return asked.format(
            a, b
        ), "That is too large for me. I can only work with numbers up to twenty."
    return expand(rng, pick(rng, UNKNOWN)), DO_NOT_KNOW


def follow_up(rng: Random) -> list[Pair]:
    """Two or three turns where the later ones make sense only with the earlier ones."""
    if rng.random() < 0.4:
        at = int(rng.random() * 7)
        day, after, next_one = (words.DAYS[(at + k) % 7] for k in range(3))
        return [
            (f"Which day comes after {day}?", f"{after} comes after {day}."),
            (
                pick(rng, ("And after that?", "And the day after that?", "And then?")),
                f"{next_one} comes after {after}.",
            ),
        ]
    if rng.random() < 0.6:
        first, second = rng.sample(list(words.CAPITALS), 2)
        turns = [(c, words.CAPITALS[c]) for c in (first, second)]
        asked = (f"What is the capital of {first}?", f"And of {second}?")
        return [
            (q, f"The capital of {c} is {city}{'' if city.endswith('.') else '.'}")
            for q, (c, city) in zip(asked, turns, strict=True)
        ]
    first, second = rng.sample(list(words.ANIMALS), 2)
    sounds = [(name, words.ANIMALS[name][1]) for name in (first, second)]
    asked = (f"What does {article(first)} say?", f"And {article(second)}?")
    return [
        (q, f"{article(n).capitalize()} says {s}.") for q, (n, s) in zip(asked, sounds, strict=True)
    ]


def memory(rng: Random) -> tuple[Pair, Pair]:
    """Something the user tells, and the question that asks for it later."""
    name = (
        pick(rng, words.GIRLS + words.BOYS)
        if rng.random() < 0.5
        else new_name(rng, words.SYLLABLES)
    )
    kind = int(rng.random() * 4)
    if kind < 2:
        tell = expand(
            rng,
            "[My name is {n}.|Hello, my name is {n}.|Hi, I am {n}.|I am called {n}.]",
            {"n": name},
        )
        return (tell, f"Nice to meet you, {name}!"), ("What is my name?", f"Your name is {name}.")
    if kind == 2:
        colour = pick(rng, words.FAVOURITES)
        return (
            (f"My favourite colour is {colour}.", f"{colour.capitalize()} is a nice colour."),
            ("What is my favourite colour?", f"Your favourite colour is {colour}."),
        )
    animal = pick(rng, words.PETS)
    return (
        (f"I have a {animal} named {name}.", f"{name} is a nice name for a {animal}."),
        (f"What is the name of my {animal}?", f"The name of your {animal} is {name}."),
    )


def _turns(rng: Random, count: int) -> list[Pair]:
    pairs: list[Pair] = []
    while len(pairs) < count:
        at = rng.random()
        if at < 0.76:
            pairs.append(question(rng))
        elif at < 0.84:
            pairs.extend(follow_up(rng))
        elif at < 0.92:
            asked, answer = pick(rng, SMALL_TALK)
            pairs.append((expand(rng, asked), answer))
        else:
            pairs.append(unknown(rng))
    return pairs


def chat(rng: Random) -> Chat:
    """One chat of one to about twelve turns."""
    at = rng.random()
    if at < 0.12:
        pairs = [story_request(rng)]
    elif at < 0.45:
        pairs = _turns(rng, 1)
    elif at < 0.80:
        pairs = _turns(rng, 2 + int(rng.random() * 4))
    else:
        tell, ask = memory(rng)
        between = _turns(rng, int(rng.random() * (4 if rng.random() < 0.7 else 12)))
        pairs = [tell, *between, ask]
    if len(pairs) > 1 and rng.random() < 0.25:
        asked, answer = pick(rng, CLOSING)
        pairs.append((expand(rng, asked), answer))
    turns: Chat = [("system", pick(rng, SYSTEMS))] if rng.random() < 0.35 else []
    for asked, answer in pairs:
        turns += [("user", asked), ("assistant", answer)]
    return turns


def written(turns: Chat) -> str:
    """The chat as the model's chat template writes it."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
