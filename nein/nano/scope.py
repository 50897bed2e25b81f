"""Negation in scope, drawn: pairs of scenes and pairs of sentences, each sentence true of one scene only.

    construction  first scene                          second scene
    except_one    a thing                              that and another of its kind, in another color
    neither_nor   neither of two things                the second of them
    scoped        the first of two things              the second
    not_all       two of a kind in two colors         two in the second of these colors
    past          nothing                              a thing
    clause        a thing                              one of its kind, in another color

The sentences are those of `nein.wording.families`; the first of a pair is true of the first scene. Pairs
differ in how many other things stand in both scenes, and in how many denials stand above the sentence. There
is none above "There used to be a cup.": it would not be clear what is denied.

An editor is given the first sentence as its instruction, with a scene (`edits`). Of every thing it is known
whether it must be gone afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nein.engine.images import write_png
from nein.nano.data import draw_once
from nein.nano.scenes import BACKGROUNDS, CATEGORIES, LOOKS, Item, Scene, place, render, rng_for
from nein.nano.sentences import captions
from nein.wording.families import CONSTRUCTIONS, DENIES, THINGS, Named, add_article, sentences

OTHERS, DEPTHS = (0, 1, 2, 3), (0, 1)
Thing = tuple[str, str | None]  # a category and its color, None for any
Cell = tuple[str, int, int]  # construction, other things, denials above
#: Of the pairs, in turns.
CELLS: tuple[Cell, ...] = tuple(
    (construction, others, depth)
    for depth in DEPTHS
    for others in OTHERS
    for construction in CONSTRUCTIONS
    if not (depth and construction == "past")
)
DATA = "nano:scope"  # `--data` of the edits
PAIRS_FILE = "scope.json"
VERSION = 2  # of what is drawn: part of the name of the folder in the cache
EACH = 10  # edits of every cell
SAMPLES = EACH * len(CELLS)
_ATTEMPTS = 200  # at drawing a thing of a color
#: Construction -> things of the first scene, of the second, and of the scene that an editor is given, also
#: below a denial: t the thing, r and b in either color, o the other thing.
#:
#: In an editor's scene what is behind "-" must go, so that the first sentence of a pair is true afterwards;
#: "Not all cups are red." and "There is a cup that is not blue." are true already. Below a denial it says
#: that the twin is not true: of a cup and a dog "There is a dog but no cup." is not, so that nothing must go;
#: of a red and a blue cup "There is a cup that is blue." is, and the blue one must go.
_SHOWN = {
    "except_one": ("r", "rb", "r-b", "r-b"),
    "neither_nor": ("", "o", "-to", "to"),
    "scoped": ("t", "o", "t-o", "to"),
    "not_all": ("rb", "rr", "rb", "rb"),
    "past": ("", "t", "-t", "-t"),
    "clause": ("r", "b", "rb", "r-b"),
}


@dataclass(frozen=True)
class Pair:
    """Two sentences about `named`, below `depth` denials; the k-th is true of scenes[k], and of no other."""

    construction: str
    named: Named
    others: int
    depth: int
    scenes: tuple[Scene, ...]


@dataclass(frozen=True)
class Edit(Pair):
    """The first sentence as an instruction: `scene` before it, and which of its things stay."""

    @property
    def scene(self) -> Scene:
        return self.scenes[0]

    @property
    def stays(self) -> tuple[bool, ...]:
        staying, _, gone = _SHOWN[self.construction][2 + self.depth].partition("-")
        return (*[True] * (self.others + len(staying)), *[False] * len(gone))

    @property
    def target(self) -> Scene:
        items = zip(self.scene.items, self.stays, strict=True)
        return replace(self.scene, items=tuple(item for item, stays in items if stays))

    @property
    def object(self) -> str:
        """The object of Removal: it must go or, if nothing must, the sentence names it."""
        if self.construction == "except_one" or (self.construction == "clause" and self.depth):
            return f"{self.named.second} {self.named.thing}"
        return self.named.other if self.construction == "scoped" else self.named.thing


def pairs(split: str, count: int) -> Iterator[Pair]:
    """`count` pairs, those of CELLS in turns."""
    return (Pair(*facts) for facts in _draw_fields(split, count, "scope", CELLS))


def edits(split: str, count: int) -> Iterator[Edit]:
    """`count` edits, cells in turns, the first EACH of those without a denial above before the others."""
    cells = [cell for depth in DEPTHS for cell in [c for c in CELLS if c[2] == depth] * EACH]
    return (Edit(*facts) for facts in _draw_fields(split, count, "scope edits", cells))


def _draw_fields(split: str, count: int, purpose: str, cells: Sequence[Cell]) -> Iterator[tuple[Any, ...]]:
    """The fields of `count` pairs or edits, those of `cells` in turns."""
    total = index = 0
    while total < count:
        rng, (construction, others, depth) = rng_for(split, index, purpose), cells[total % len(cells)]
        index += 1
        thing = rng.choice([name for name in THINGS if len(LOOKS[name].colors) > 1])
        other = rng.choice([name for name in THINGS if name != thing])
        named = Named(thing, other, *rng.sample(LOOKS[thing].colors, 2))
        letters = _SHOWN[construction][:2] if purpose == "scope" else _SHOWN[construction][2 + depth :][:1]
        scenes = _draw_scenes(rng, named, others, letters)
        if scenes is not None:
            total += 1
            yield construction, named, others, depth, scenes


def _draw_scenes(
    rng: random.Random, named: Named, others: int, letter_groups: Sequence[str]
) -> tuple[Scene, ...] | None:
    """A scene per entry of `letter_groups`, alike but for its things; None without room."""
    background, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    things: dict[str, Thing] = {"t": (named.thing, None), "o": (named.other, None)}
    things |= {"r": (named.thing, named.color), "b": (named.thing, named.second)}
    names = rng.sample([name for name in CATEGORIES if name not in (named.thing, named.other)], others)
    around = _add_things(rng, [(name, None) for name in names], ())
    scenes = []
    for letters in letter_groups:
        group = [things[letter] for letter in letters.replace("-", "")]
        items = None if around is None else _add_things(rng, group, around)
        if items is None:
            return None
        scenes.append(Scene(background, seed, items))
    return tuple(scenes)


Items = tuple[Item, ...]


def _add_things(rng: random.Random, things: Sequence[Thing], items: Items) -> Items | None:
    for kind, color in things:
        for _ in range(_ATTEMPTS):
            item = place(rng, kind, items)
            if item is None:
                return None
            if color in (None, item.color):
                break
        else:
            return None
        items = (*items, item)
    return items


def ensure_pairs(split: str, count: int) -> Path:
    """The folder of `count` pairs, drawn on first use."""
    name = f"scope-{split}-{count}-{VERSION}"
    return draw_once(name, lambda draft: write_pairs(draft, split, count), proof=PAIRS_FILE)


def ensure(split: str) -> Path:
    """The folder of the edits in NeIn's layout, drawn on first use."""
    name = f"nano-scope-{split}-{SAMPLES}-{VERSION}"
    return draw_once(name, lambda draft: write(draft, split, SAMPLES), proof=f"{split}.json")


def write_pairs(root: Path, split: str, count: int) -> None:
    """`scope.json` and images/: caption k is true of image k; `denies`: whether it has a denying word."""
    rows = []
    for number, pair in enumerate(pairs(split, count)):
        texts = sentences(pair.construction, pair.named, pair.depth)
        row: dict[str, str | int | bool] = {}
        for k, (scene, text) in enumerate(zip(pair.scenes, texts, strict=True)):
            row[f"image_{k}"] = f"images/{number:05d}_{k}.png"
            row[f"caption_{k}"] = text
            row[f"denies_{k}"] = bool(pair.depth) or DENIES[pair.construction][k]
            write_png(root / f"images/{number:05d}_{k}.png", render(scene))
        rows.append({**row, "construction": pair.construction, "others": pair.others, "depth": pair.depth})
    _write_last(root / PAIRS_FILE, rows)


def write(root: Path, split: str, count: int) -> None:
    """Writes `count` edits in NeIn's layout, with {family, object, others, depth, things: [{name, stays,
    without}]}: without_<split>/<without>.png is the sample without the thing."""
    targets, samples, without = (root / f"{name}_{split}" for name in ("coco_for", "nein", "without"))
    records = []
    for number, edit in enumerate(edits(split, count), start=1):
        source, sample = f"COCO_{number:012d}", f"NeIn_{number:012d}_1"
        write_png(targets / f"{source}.png", render(edit.target))
        write_png(samples / f"{sample}.png", render(edit.scene))
        things = []
        for k, (item, stays) in enumerate(zip(edit.scene.items, edit.stays, strict=True)):
            remaining = (*edit.scene.items[:k], *edit.scene.items[k + 1 :])
            write_png(without / f"{sample}_{k}.png", render(replace(edit.scene, items=remaining)))
            name = f"{item.color} {item.category}"
            things.append({"name": name, "stays": stays, "without": f"{sample}_{k}"})
        record = {
            "COCO": source,
            "T_original": captions(edit.target, rng_for(split, number, "scope captions"), 1)[0],
            "T_negative": sentences(edit.construction, edit.named, edit.depth)[0],
            "T_generated": f"Add {add_article(edit.object)}.",
            "NeIn": sample,
        }
        facts = {"family": edit.construction, "object": edit.object, "others": edit.others}
        records.append({**record, **facts, "depth": edit.depth, "things": things})
    _write_last(root / f"{split}.json", records)


def _write_last(path: Path, rows: Sequence[Any]) -> None:
    """The file that says that all is there."""
    path.write_text(f"{json.dumps(rows, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
