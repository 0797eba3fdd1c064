"""Word lists of the training corpus: names, places, things, animals, facts. For the training script only."""

# ruff: noqa: SIM905 — lists of words are easier to read and to extend as one string
from __future__ import annotations

GIRLS = (
    "Mia Lily Anna Zoë Noor Ella Ida Nina Maya Ruth Clara Priya Ines Greta Sofia Lena Amina Rosa Alice Hana "
    "Vera Tilda Wilma Ada"
).split()
BOYS = (
    "Tom Ben Sam José Ravi Leo Omar Kai Hugo Otto Finn Aldo Emil Yusuf Pavel Tariq Jonas Marco Peter Oscar "
    "Daniel Felix Noah Ivo"
).split()
ANIMAL_HEROES = (
    "fox rabbit bear mouse hedgehog otter squirrel duck badger kitten puppy turtle owl goat".split()
)
SYLLABLES = (
    "ba be bo da de do fi ga go ka ki ko la le li lo ma me mi mo na ne ni no pa ra re ri ro sa se ta te ti to va vi"
).split()
FAVOURITES = (
    "red",
    "blue",
    "green",
    "yellow",
    "orange",
    "purple",
    "pink",
    "white",
    "black",
    "brown",
)
PETS = ("dog", "cat", "horse", "rabbit", "mouse", "goat", "duck", "turtle")
TRAITS = "curious gentle brave shy cheerful patient clever quiet kind lively".split()
HOMES = (
    "in a small house by the sea",
    "in a village under a green hill",
    "at the edge of a deep forest",
    "in a tall house beside a river",
    "on a farm with a red barn",
    "in a little town with a stone bridge",
    "near a lake with clear blue water",
    "in a cottage at the end of a long lane",
)
PLACES = "forest market river meadow harbour hill garden library beach bridge mill orchard square pond".split()
THINGS = (
    "red kite|wooden boat|silver bell|blue scarf|little drum|glass marble|paper lantern|brass key|music box|"
    "green hat|yellow ball|tin whistle|picture book|golden button"
).split("|")
FOODS = (
    "honey cake|apple pie|nut cake|plum tart|pear tart|cheese roll|berry pudding|poppy bun".split(
        "|"
    )
)
ELDERS_SHE = "grandmother mother aunt".split()
ELDERS_HE = "grandfather father uncle".split()
HELPERS = (
    "old owl|grey cat|friendly goat|tiny mouse|brown dog|wise crow|small sparrow|slow tortoise|white horse"
).split("|")
SUN = ("sunny", "bright", "warm", "clear")
GREY = ("cold", "windy", "rainy", "grey")

NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)
SEASONS = "spring summer autumn winter".split()
ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
)

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Poland": "Warsaw", "Austria": "Vienna", "Greece": "Athens", "Ireland": "Dublin", "Hungary": "Budapest",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasília", "Argentina": "Buenos Aires",
    "Peru": "Lima", "Chile": "Santiago", "Cuba": "Havana", "Australia": "Canberra",
    "New Zealand": "Wellington", "Russia": "Moscow", "Turkey": "Ankara", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "the United Kingdom": "London", "the United States": "Washington, D.C.",
    "South Korea": "Seoul", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Iceland": "Reykjavík",
}  # fmt: skip
OPPOSITES = (
    "hot cold|big small|up down|day night|happy sad|fast slow|bright dark|open closed|full empty|wet dry|"
    "old new|hard soft|high low|loud quiet|near far|early late|clean dirty|left right|strong weak|"
    "tall short|thick thin|first last|heavy light|rich poor|true false|inside outside|always never"
).split("|")
COLOURS = {
    "the sky on a clear day": "blue", "grass": "green", "snow": "white", "coal": "black",
    "a ripe banana": "yellow", "a ripe tomato": "red", "a carrot": "orange", "milk": "white",
    "a leaf in spring": "green", "chocolate": "brown", "the sun in a child's drawing": "yellow",
    "a strawberry": "red", "an elephant": "grey", "a flamingo": "pink", "a lemon": "yellow",
}  # fmt: skip
MIXES = {
    ("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple",
    ("red", "white"): "pink", ("black", "white"): "grey",
}  # fmt: skip
# animal: legs, the sound it makes, its young, where it lives, what it eats
ANIMALS = {
    "dog": (4, "woof", "puppy", "with people", "meat"),
    "cat": (4, "meow", "kitten", "with people", "fish and meat"),
    "cow": (4, "moo", "calf", "on a farm", "grass"),
    "sheep": (4, "baa", "lamb", "on a farm", "grass"),
    "pig": (4, "oink", "piglet", "on a farm", "almost anything"),
    "horse": (4, "neigh", "foal", "on a farm", "grass and hay"),
    "duck": (2, "quack", "duckling", "near a pond", "plants and small insects"),
    "hen": (2, "cluck", "chick", "on a farm", "seeds"),
    "frog": (4, "ribbit", "tadpole", "near a pond", "flies"),
    "lion": (4, "roar", "cub", "on the grassland", "meat"),
    "bear": (4, "growl", "cub", "in the forest", "berries and fish"),
    "owl": (2, "hoot", "owlet", "in the forest", "mice"),
    "goat": (4, "bleat", "kid", "on a farm", "grass and leaves"),
    "bee": (6, "buzz", "larva", "in a hive", "nectar"),
}
EMOJI = {
    "a smiling face": "😊", "a red heart": "❤️", "a cat": "🐱", "a dog": "🐶", "a star": "⭐", "a fish": "🐟",
    "a tree": "🌳", "the sun": "☀️", "an apple": "🍎", "a rocket": "🚀", "a family": "👨‍👩‍👧", "a flag of Japan": "🇯🇵",
}  # fmt: skip
GREETINGS = {
    "French": "bonjour", "Spanish": "hola", "German": "guten Tag", "Italian": "ciao", "Portuguese": "olá",
    "Japanese": "こんにちは", "Russian": "привет", "Greek": "γεια σου", "Swedish": "hej", "Korean": "안녕하세요",
    "Chinese": "你好", "Arabic": "مرحبا",
}  # fmt: skip
COPY_WORDS = (
    "red blue green seven three nine cat dog river stone tree house bread song moon star rain snow door window table "
    "happy quiet small tall old new apple pear boat bridge letter book night morning"
).split()
SPELLING = (
    "cat dog sun book tree fish house water bread happy green apple night river horse music".split()
)
