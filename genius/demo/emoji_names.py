"""Names of emoji and of Unicode's sub-groups in plain English, and the traits by which variants of an emoji differ."""

import re

TONES = {"1f3fb": "light", "1f3fd": "medium", "1f3ff": "dark"}
"""Skin tones of the collection. 1f3fc and 1f3fe are left out, since they differ too little from these."""

ALL_TONES = frozenset({"1f3fb", "1f3fc", "1f3fd", "1f3fe", "1f3ff"})
COLOURS = "red orange yellow green blue light_blue purple brown black grey white pink"
_COLOUR = "|".join(word.replace("_", " ") for word in sorted(COLOURS.split(), key=len, reverse=True))

SUBGROUPS = {
    "alphanum": "buttons with letters",
    "animal-amphibian": "amphibians",
    "animal-bird": "birds",
    "animal-bug": "insects and other bugs",
    "animal-mammal": "mammals",
    "animal-marine": "sea animals",
    "animal-reptile": "reptiles",
    "arrow": "arrows",
    "arts & crafts": "arts and crafts",
    "av-symbol": "play buttons and other media symbols",
    "award-medal": "medals and trophies",
    "body-parts": "parts of the body",
    "book-paper": "books and papers",
    "cat-face": "faces of a cat",
    "clothing": "clothes, shoes and bags",
    "computer": "computers and their parts",
    "country-flag": "flags of countries",
    "currency": "currency signs",
    "dishware": "dishes and cutlery",
    "drink": "drinks",
    "emotion": "signs of feeling",
    "event": "celebrations",
    "face-affection": "loving faces",
    "face-concerned": "worried and sad faces",
    "face-costume": "masks and costumes",
    "face-glasses": "faces with glasses",
    "face-hand": "faces with hands",
    "face-hat": "faces with a hat",
    "face-negative": "angry faces and skulls",
    "face-neutral-skeptical": "neutral and doubtful faces",
    "face-sleepy": "sleepy faces",
    "face-smiling": "smiling faces",
    "face-tongue": "faces with the tongue out",
    "face-unwell": "sick faces",
    "family": "couples and families",
    "flag": "special flags",
    "food-asian": "Asian dishes",
    "food-fruit": "fruit",
    "food-marine": "seafood",
    "food-prepared": "cooked dishes",
    "food-sweet": "sweets and desserts",
    "food-vegetable": "vegetables",
    "game": "games",
    "gender": "gender signs",
    "geometric": "coloured shapes",
    "hand-fingers-closed": "closed hands",
    "hand-fingers-open": "open hands",
    "hand-fingers-partial": "hand signs",
    "hand-prop": "hands holding something",
    "hand-single-finger": "pointing fingers",
    "hands": "pairs of hands",
    "heart": "hearts",
    "hotel": "hotel things",
    "household": "household things",
    "keycap": "keys of a keypad",
    "light & video": "lamps and cameras",
    "lock": "locks and keys",
    "mail": "mail and parcels",
    "math": "signs of arithmetic",
    "medical": "medical things",
    "money": "money",
    "monkey-face": "monkeys covering their face",
    "music": "music and sound studios",
    "musical-instrument": "musical instruments",
    "office": "office things",
    "other-object": "other objects",
    "other-symbol": "other symbols",
    "person": "people of all ages",
    "person-activity": "people doing something",
    "person-fantasy": "people from tales",
    "person-gesture": "people making a gesture",
    "person-resting": "people resting",
    "person-role": "people at work",
    "person-sport": "people doing sport",
    "person-symbol": "outlines of people",
    "phone": "telephones",
    "place-building": "buildings",
    "place-geographic": "landscapes",
    "place-map": "globes and maps",
    "place-other": "city views and fairs",
    "place-religious": "places of worship",
    "plant-flower": "flowers",
    "plant-other": "trees and other plants",
    "punctuation": "punctuation marks",
    "religion": "religious signs",
    "science": "scientific instruments",
    "sky & weather": "sky and weather",
    "sound": "bells and loudspeakers",
    "sport": "sports",
    "subdivision-flag": "flags of regions",
    "time": "clocks and watches",
    "tool": "tools",
    "transport-air": "aircraft",
    "transport-ground": "vehicles and roads",
    "transport-sign": "signs at stations and airports",
    "transport-water": "boats and ships",
    "warning": "warning signs",
    "writing": "pens and pencils",
    "zodiac": "signs of the zodiac",
}

_GENDERED = {  # code point -> (meaning regardless of gender, gender)
    "1f468": ("person", "man"),
    "1f469": ("person", "woman"),
    "1f9d1": ("person", "person"),
    "1f466": ("child", "man"),
    "1f467": ("child", "woman"),
    "1f9d2": ("child", "person"),
    "1f474": ("elder", "man"),
    "1f475": ("elder", "woman"),
    "1f9d3": ("elder", "person"),
    "1f934": ("royal", "man"),
    "1f478": ("royal", "woman"),
    "1fac5": ("royal", "person"),
    "1f385": ("claus", "man"),
    "1f936": ("claus", "woman"),
    "1f57a": ("dancer", "man"),
    "1f483": ("dancer", "woman"),
    "1fac3": ("pregnant", "man"),
    "1f930": ("pregnant", "woman"),
    "1fac4": ("pregnant", "person"),
}
_HAIR = {"1f9b0": "red hair", "1f9b1": "curly hair", "1f9b2": "no hair", "1f9b3": "white hair"}
_SIGNS = {"2640": "woman", "2642": "man"}


def plain_name(name: str, *, is_flag: bool = False) -> str:
    """'man_red_hair' -> 'man with red hair'; 'Germany' -> 'flag of Germany'; family members in a list."""
    name = name.strip(":").replace("_", " ").replace("’", "'")
    if is_flag:
        return f"flag of {name}"
    if match := re.fullmatch(r"(couple with heart|kiss) (woman|man|person) (woman|man|person)", name):
        what, first, second = match.groups()
        return f"{what}: {first} and {second}"
    if match := re.fullmatch(r"family((?: (?:man|woman|adult|boy|girl|child))+)", name):
        *most, last = match[1].split()
        return f"family: {', '.join(most)} and {last}"
    name = re.sub(r"^(man|woman|person) (red|curly|white|blond) hair$", r"\1 with \2 hair", name)
    name = re.sub(r"^(man|woman|person) bald$", r"bald \1", name)
    return re.sub(r"^(man|woman|person) beard$", r"\1 with a beard", name)


def concept_and_traits(codes: tuple[str, ...], name: str, group: str) -> tuple[str, dict[str, str]]:
    """The concept of an emoji, and its traits: skin tone, gender, hair, direction, colour, view.

    A composed query leads from one emoji to another of the same concept that differs in exactly one trait.
    """
    rest, traits = [], {}
    people = [code for code in codes if code in ("1f466", "1f467", "1f468", "1f469", "1f9d1", "1f9d2")]
    for code in codes:
        if code in TONES:
            traits["tone"] = TONES[code]
        elif code in _SIGNS:
            traits["gender"] = _SIGNS[code]
        elif code in _HAIR:
            traits["hair"] = _HAIR[code]
        elif code == "27a1":
            traits["facing"] = "right"
        elif code in _GENDERED and len(people) <= 1:
            what, traits["gender"] = _GENDERED[code]
            rest.append(what)
        elif code not in ALL_TONES and code not in ("200d", "fe0f"):
            rest.append(code)
    if len(people) > 1 or codes[0] in ("1f46a", "1f46b", "1f46c", "1f46d", "1f48f", "1f491"):
        return ("couple or family", {**traits, "people": name})
    if match := re.fullmatch(rf"({_COLOUR}) (heart|circle|square|book|apple)", name):
        return match[2], {"colour": match[1]}
    if re.search(r"o'clock$|-thirty$", name):
        return "clock face", {"time": name}
    if group == "Animals & Nature" and re.fullmatch(r"\w+ face", name):
        return name.removesuffix(" face"), {"view": "face"}
    if group == "Animals & Nature" and re.fullmatch(r"\w+", name):
        return name, {}
    if rest == ["person", "1f384"]:
        rest = ["claus"]
    return "-".join(rest), traits


def change(before: dict[str, str], after: dict[str, str]) -> tuple[str, str] | None:
    """(trait, new value or '') if exactly one trait differs, otherwise None."""
    differ = [trait for trait in sorted(before.keys() | after.keys()) if before.get(trait) != after.get(trait)]
    if "gender" in differ and {before.get("gender"), after.get("gender")} == {None, "person"}:
        return None
    return (differ[0], after.get(differ[0], "")) if len(differ) == 1 else None


def wordings(trait: str, value: str) -> tuple[str, ...]:
    """Phrases that ask for the variant that `change` found; empty if there is no natural phrase."""
    if trait == "tone":
        if not value:
            return ("in plain yellow", "without a skin tone", "the same, but yellow as a smiley")
        return (f"with {value} skin tone", f"the same, but with {value} skin", f"make the skin tone {value}")
    if trait == "gender":
        who = {"man": "man", "woman": "woman"}.get(value)
        if who is None:
            return ("as a person of any gender", "the same, but neither man nor woman")
        return (f"as a {who}", f"the same, but a {who}", f"show a {who} instead")
    if trait == "hair":
        return (f"with {value}", f"the same, but with {value}") if value else ("with ordinary hair",)
    if trait == "facing":
        return ("facing right", "turned to the right") if value else ("facing left", "turned to the left")
    if trait == "colour":
        return (f"in {value}", f"the same, but {value}", f"change the colour to {value}")
    if trait == "view":
        return ("only its face", "just the head") if value else ("the whole animal", "show its whole body")
    return ()
