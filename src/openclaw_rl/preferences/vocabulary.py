"""Words that state a limit, a form or a language for replies, in several languages. Tables only.

Each table maps a meaning to a regular expression over lower-case text with straight quotes. A language is added only
here: parsing, wording and comparison read these tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from openclaw_rl.text import NUMBER, number_of

UNITS: Final = {
    "words": r"words?|wörtern?|worten?|mots|palabras?|parole|palavras?|woord(?:en)?|słów|слов[а]?|kelime",
    "sentences": r"sentences?|sätzen?|satz|phrases?|frases?|oraci(?:ón|ones)|frasi|zin(?:nen)?|предложени\w+",
    "paragraphs": r"paragraphs?|absätzen?|absatz|paragraphes?|párrafos?|paragrafi|parágrafos?|alinea's?",
    "lines": r"lines?|zeilen?|lignes?|líneas?|righe|linhas?|regels?",
    "characters": r"characters?|chars?|zeichen|caractères?|caracteres|caratteri|tekens?",
    "items": r"bullets?|bullet[ -]?points?|points|items|punkten?|stichpunkten?|puntos|punti|pontos|punten",
}
"""units of a measure"""

_BELOW = (
    r"under|below|fewer than|less than|shorter than|unter|weniger als|(?:en )?moins de|menos de|meno di|minder dan"
    r"|меньше"
)
_UP_TO = (
    r"at (?:the )?most|no more than|not more than|up to|within|max(?:imum)?\.?(?: of)?|höchstens|maximal|nicht mehr als"
    r"|bis zu|au (?:plus|maximum)|maximum|pas plus de|como máximo|máximo(?: de)?|no más de|a lo sumo|al massimo|massimo"
    r"|non più di|no máximo|até|não mais (?:de|do que)|hoogstens|maximaal|niet meer dan|не более|максимум"
)
_ABOVE = r"more than|over|mehr als|plus de|más de|più di|mais de|meer dan|больше"
_FROM = (
    r"at least|minimum(?: of)?|no (?:less|fewer) than|not (?:less|fewer) than|mindestens|wenigstens|nicht weniger als"
    r"|au moins|minimum|al menos|por lo menos|mínimo(?: de)?|almeno|minimo|pelo menos|no mínimo|minstens|ten minste"
    r"|minimaal|не менее|минимум"
)
LIMITS: Final[tuple[tuple[Relation, bool, str], ...]] = (
    ("most", True, _BELOW),
    ("least", True, _ABOVE),
    ("least", False, _FROM),
    ("most", False, _UP_TO),
)
"""(relation, True if the number itself is excluded, words before the number)"""
LIMITS_AFTER: Final[tuple[tuple[Relation, str], ...]] = (
    ("least", r"or more|at least|minimum|and up|oder mehr|ou plus|o más|o più|ou mais|of meer"),
    (
        "most",
        r"or (?:less|fewer)|at (?:the )?most|max(?:imum)?|tops|only|oder weniger|ou moins|o menos|o meno|ou menos"
        r"|of minder",
    ),
)

CHINESE_NUMBERS: Final = {sign: count for count, sign in enumerate("一二三四五六七八九十", 1)} | {"两": 2}
CHINESE_UNITS: Final = {
    "字": "words",
    "词": "words",
    "句": "sentences",
    "段": "paragraphs",
    "行": "lines",
    "条": "items",
}
CHINESE_LIMITS: Final[dict[str, Relation]] = {
    "不超过": "most",
    "不要超过": "most",
    "最多": "most",
    "少于": "most",
    "至少": "least",
    "不少于": "least",
}
CHINESE_LIMITS_AFTER: Final[dict[str, Relation]] = {"以内": "most", "以下": "most", "以上": "least"}

_SPELT_NUMBERS: Final = {
    "de": "ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
    "fr": "un deux trois quatre cinq six sept huit neuf dix onze douze",
    "es": "un dos tres cuatro cinco seis siete ocho nueve diez once doce",
    "it": "un due tre quattro cinque sei sette otto nove dieci undici dodici",
    "pt": "um dois três quatro cinco seis sete oito nove dez onze doze",
    "nl": "één twee drie vier vijf zes zeven acht negen tien elf twaalf",
}
_VARIANTS: Final = {
    "einem": 1, "einen": 1, "einer": 1, "eine": 1, "une": 1, "una": 1, "uno": 1, "uma": 1, "een": 1, "a": 1,
    "a single": 1, "a hundred": 100, "hundert": 100, "cent": 100, "cien": 100, "cento": 100, "cem": 100, "dreißig": 30,
    "trente": 30, "treinta": 30, "trenta": 30, "trinta": 30, "dertig": 30, "zwanzig": 20, "vingt": 20, "veinte": 20,
    "venti": 20, "vinte": 20, "twintig": 20, "fünfzig": 50, "cinquante": 50, "cincuenta": 50, "cinquanta": 50,
    "cinquenta": 50, "vijftig": 50,
}  # fmt: skip
_FOREIGN_NUMBERS: Final = {
    word: count for row in _SPELT_NUMBERS.values() for count, word in enumerate(row.split(), 1)
} | _VARIANTS
ANY_NUMBER: Final = rf"(?:{NUMBER}|{'|'.join(sorted(_FOREIGN_NUMBERS, key=len, reverse=True))})"
"""a number in figures or words, in any table language; `count_of` converts it"""


def count_of(text: str) -> int:
    """Return the value of an `ANY_NUMBER` match."""
    lowered = text.lower()
    return _FOREIGN_NUMBERS[lowered] if lowered in _FOREIGN_NUMBERS else number_of(lowered)


LANGUAGES: Final = {
    "english": "en|english|englisch|anglais|inglés|inglese|inglês|engels|英[文语]",
    "german": "de|german|deutsch|allemand|alemán|tedesco|alemão|duits|德[文语]",
    "french": "fr|french|französisch|français|francés|francese|francês|frans|法[文语]",
    "spanish": "es|spanish|spanisch|espagnol|español|castellano|spagnolo|espanhol|spaans|西班牙[文语]",
    "italian": "it|italian|italienisch|italien|italiano|italiaans|意大利[文语]",
    "portuguese": "pt|portuguese|portugiesisch|portugais|portugués|portoghese|português|portugees|葡萄牙[文语]",
    "dutch": "nl|dutch|niederländisch|néerlandais|neerlandés|holandés|olandese|holandês|nederlands|荷兰[文语]",
    "chinese": "zh|chinese|mandarin|chinesisch|chinois|chino|cinese|chinês|chinees|中文|汉语",
    "japanese": "ja|japanese|japanisch|japonais|japonés|giapponese|japonês|japans|日[文语]|日本語",
    "korean": "ko|korean|koreanisch|coréen|coreano|koreaans|韩[文语]|한국어",
    "russian": "ru|russian|russisch|russe|ruso|russo|俄[文语]|русск\\w+",
    "polish": "pl|polish|polnisch|polonais|polaco|polacco|polonês|pools|po polsku",
    "turkish": "tr|turkish|türkisch|turc|turco|turks|türkçe",
    "swedish": "sv|swedish|schwedisch|suédois|sueco|svedese|zweeds",
    "danish": "da|danish|dänisch|danois|danés|danese|dinamarquês|deens",
    "norwegian": "no|norwegian|norwegisch|norvégien|noruego|norvegese|norueguês|noors",
    "finnish": "fi|finnish|finnisch|finnois|finlandés|finlandese|finlandês|fins",
    "czech": "cs|czech|tschechisch|tchèque|checo|ceco|tcheco|tsjechisch",
    "hungarian": "hu|hungarian|ungarisch|hongrois|húngaro|ungherese|hongaars",
    "greek": "el|greek|griechisch|grec|griego|greco|grego|grieks",
    "ukrainian": "uk|ukrainian|ukrainisch|ukrainien|ucraniano|ucraino|oekraïens",
    "arabic": "ar|arabic|arabisch|arabe|árabe|arabo",
    "hebrew": "he|hebrew|hebräisch|hébreu|hebreo|ebraico|hebraico|hebreeuws",
    "hindi": "hi|hindi",
    "thai": "th|thai|thailändisch|thaï|tailandés|thailandese|tailandês",
    "vietnamese": "vi|vietnamese|vietnamesisch|vietnamien|vietnamita|vietnamees",
    "latin": "la|latin|latein|latín|latino|latim|latijn",
}
"""per language: its ISO code, then its name in the tables' languages"""
CODES: Final = {name: row.partition("|")[0] for name, row in LANGUAGES.items()}
LANGUAGE_NAMES: Final = {name: row.partition("|")[2] for name, row in LANGUAGES.items()}

NEGATION: Final = (
    r"(?:no|not|never|without(?: any)?|don't|do not|avoid|stop|skip|drop|quit|less|fewer|instead of|rather than|kein\w*"
    r"|keine?|ohne|nicht|nie|pas(?: de)?|sans|jamais|sin|nunca|senza|mai|sem|geen|zonder|nooit|不要|别|不用|不)"
)
"""words that reject the form after them"""
BULLETS: Final = (
    r"(?:bullet(?:ed)?(?:[ -]?points?|[ -]?lists?)?|bullets|dot[ -]?points?|lists?|liste\w*|aufzählung\w*|stichpunkt\w*"
    r"|puces|listas?|viñetas|elench\w+|punti elenco|lijst\w*|opsomming\w*|列表)"
)
PROGRAMMING: Final = "python|javascript|typescript|rust|java|bash|go|kotlin|swift|ruby|php"


def pattern(text: str) -> re.Pattern[str]:
    """Return a compiled, case-insensitive pattern."""
    return re.compile(text, re.IGNORECASE)


# Preference terms: a wish about replies, and its demands.
#
# Wish("At most 30 words, in German.") = length, most 30 words and language, german

Relation: TypeAlias = Literal["most", "least", "about", "more", "less", "yes", "no"]
"""``more`` and ``less`` are vague: a direction without a measure"""

LENGTHS = frozenset({"words", "sentences", "paragraphs", "lines", "characters"})
"""aspects that measure a reply's length, each named after its unit"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One property that a wish asks of each reply, such as ``Demand(aspect="words", relation="most", number=30)``."""

    aspect: str
    relation: Relation = "yes"
    number: int | None = None
    text: str | None = None
    """the words, the language or the name in the demand"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A parsed wish. All its demands apply together; ``rest`` is True if it asks for more than they cover."""

    text: str
    demands: tuple[Demand, ...] = ()
    rest: bool = False

    @property
    def known(self) -> bool:
        """Return True if the demands are all that the wish asks for."""
        return bool(self.demands) and not self.rest
