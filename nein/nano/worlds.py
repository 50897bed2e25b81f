"""Variants of the nano world that differ in what a model may have been taught: wording, objects, style.

A fine-tuning on "nano:taught" sees no sentence about the objects of `HELD_OUT`, none in a held-out wording,
and no sketch. Every other world changes one of these things, "nano:unlike" all of them at once, so that a
figure says how far the mending generalises. "taught", "wording", "negator" and "style" have the same scenes.
The benchmarks take the names as `--data`; "nano" alone has every object.
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.engine.errors import unknown
from nein.nano.draw import CATEGORIES
from nein.nano.styles import PLAIN, SKETCH

#: Objects that no sentence of a fine-tuning names. All models know them from affirmative sentences.
HELD_OUT = ("bus", "cup", "laptop", "sheep", "umbrella")
#: Wordings. "taught": what fine-tuning may use. "held-out": sentences it has not seen, whose denying words
#: ("no", "not", "without") it knows from others. "negator": sentences with a denying word it has never seen.
#: "varied": for training on more wordings than the taught ones, none of them held out.
ALL, TAUGHT, UNSEEN, NEGATOR, VARIED = "all", "taught", "held-out", "negator", "varied"


@dataclass(frozen=True)
class World:
    """What data are drawn from.

    shown    The objects scenes are drawn from; one that occurs more often is drawn more often.
    named    The objects that sentences deny or ask about.
    wording  "all", "taught", "held-out", "negator" or "varied".
    style    One of `styles.STYLES`.
    """

    name: str
    shown: tuple[str, ...] = CATEGORIES
    named: frozenset[str] = frozenset(CATEGORIES)
    wording: str = ALL
    style: str = PLAIN


_OLD = tuple(category for category in CATEGORIES if category not in HELD_OUT)
# About every other thing in a scene is held out: a scene then mostly has one that can be asked about.
_NEW = _OLD + HELD_OUT * 5


def _world(name: str, shown: tuple[str, ...], wording: str, style: str = PLAIN) -> World:
    return World(f"nano:{name}", shown, frozenset(_OLD if shown is _OLD else HELD_OUT), wording, style)


NANO = World("nano")
WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        NANO,
        World("nano:varied", wording=VARIED),
        _world("taught", _OLD, TAUGHT),
        _world("wording", _OLD, UNSEEN),
        _world("negator", _OLD, NEGATOR),
        _world("objects", _NEW, TAUGHT),
        _world("style", _OLD, TAUGHT, SKETCH),
        _world("unlike", _NEW, UNSEEN, SKETCH),
    )
}
#: What a study reports: the taught world first, then each thing held out, then three of them together.
AXES = tuple(name for name, world in WORLDS.items() if world.wording not in (ALL, VARIED))


def is_nano(data: str) -> bool:
    """Whether what `--data` says is a world: "nano" or "nano:NAME"."""
    return data == NANO.name or data.startswith(f"{NANO.name}:")


def world(data: str) -> World:
    """The world that `--data` names. Raises UserError for one that there is not."""
    if data not in WORLDS:
        raise unknown("nano world", data, WORLDS)
    return WORLDS[data]
