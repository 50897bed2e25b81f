"""Negation in scope in eight languages, each with the sources of its rules."""

from __future__ import annotations

from nein.wording.languages import asian, european
from nein.wording.languages.base import Language

#: Code -> language; English first.
LANGUAGES: dict[str, Language] = {
    language.code: language
    for language in (
        european.English(), european.German(), european.French(), european.Spanish(), european.Russian(),
        asian.Turkish(), asian.Japanese(), asian.Chinese(),
    )
}  # fmt: skip
