"""Negation in scope in eight languages: as much grammar as the sentences need, with its sources."""

from __future__ import annotations

from nein.wording.languages.base import Language
from nein.wording.languages.chinese import CHINESE
from nein.wording.languages.english import ENGLISH
from nein.wording.languages.french import FRENCH
from nein.wording.languages.german import GERMAN
from nein.wording.languages.japanese import JAPANESE
from nein.wording.languages.russian import RUSSIAN
from nein.wording.languages.spanish import SPANISH
from nein.wording.languages.turkish import TURKISH

#: Code -> language; English first.
LANGUAGES: dict[str, Language] = {
    language.code: language
    for language in (ENGLISH, GERMAN, FRENCH, SPANISH, RUSSIAN, TURKISH, JAPANESE, CHINESE)
}
