"""Draw negation in scope: pairs of scenes and pairs of sentences, each sentence true of one scene only.

    construction  first scene                          second scene
    except_one    a thing                              that and another of its kind, in another color
    neither_nor   neither of two things                the second of them
    scoped        the first of two things              the second
    not_all       two of a kind in two colors         two in the second of these colors
    past          nothing                              a thing
    clause        a thing                              one of its kind, in another color

The sentences are those of `nein.wording.families`; the first of a pair is true of the first scene. Pairs
differ in the number of other things in both scenes, and in the number of denials above the sentence: 0 or 1,
and 0 for "past", where it would not be clear what is denied. For editors (`iter_edits`) the first sentence is
the instruction; of every thing it is known whether it must be gone afterwards.
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
from nein.nano.sentences import write_captions
from nein.wording.families import CONSTRUCTIONS, DENIES, THINGS, Named, add_article, write_twins

OTHERS, DEPTHS = (0, 1, 2, 3), (0, 1)  # numbers of other things, of denials above
Thing = tuple[str, str | None]  # a category and its color, None for any
Cell = tuple[str, int, int]  # construction, other things, denials above
#: Cells that the pairs take in turns.
CELLS: tuple[Cell, ...] = tuple(
    (construction, others, depth)
    for depth in DEPTHS
    for others in OTHERS
    for construction in CONSTRUCTIONS
    if not (depth and construction == "past")
)
DATA = "nano:scope"  # `--data` of the edits
PAIRS_FILE = "scope.json"
VERSION = 2  # of the drawings, in the name of the cache folder
EACH = 10  # edits of every cell
SAMPLES = EACH * len(CELLS)
_ATTEMPTS = 200  # at drawing a thing of a color
# Construction -> things of the first scene, of the second, of an editor's scene, and of one below a denial.
# t: the thing; r, b: the thing in the first or second color; o: the other thing.
#
# In an editor's scene the things after "-" must go, so that the instruction is true afterwards; "Not all cups
# are red." and "There is a cup that is not blue." are true already. Below a denial the instruction says that
# the twin is not true. "There is a dog but no cup." is not true of a cup and a dog, so nothing must go;
# "There is a cup that is blue." is true of a red and a blue cup, so the blue one must go.
_THINGS = {
    "except_one": ("r", "rb", "r-b", "r-b"),
    "neither_nor": ("", "o", "-to", "to"),
    "scoped": ("t", "o", "t-o", "to"),
    "not_all": ("rb", "rr", "rb", "rb"),
    "past": ("", "t", "-t", "-t"),
    "clause": ("r", "b", "rb", "r-b"),
}


@dataclass(frozen=True)
class Pair:
    """Two sentences about `named`; the k-th is true of scenes[k] only."""

    construction: str
    named: Named
    others: int  # other things in both scenes
    depth: int  # denials above the sentences
    scenes: tuple[Scene, ...]


@dataclass(frozen=True)
class Edit(Pair):
    """The first sentence as an instruction for an editor; `scenes` has the scene before the edit alone."""

    @property
    def scene(self) -> Scene:
        """The scene before the edit."""
        return self.scenes[0]

    @property
    def stays(self) -> tuple[bool, ...]:
        """Whether each thing of the scene stays."""
        _, _, *letters = _THINGS[self.construction]  # of the editor's scene, by depth
        staying, _, gone = letters[self.depth].partition("-")
        return (True,) * (self.others + len(staying)) + (False,) * len(gone)

    @property
    def target(self) -> Scene:
        """The scene after the edit."""
        items = zip(self.scene.items, self.stays, strict=True)
        return replace(self.scene, items=tuple(item for item, stays in items if stays))

    @property
    def object(self) -> str:
        """The object that Removal asks about: it must go, or the sentence names it if nothing must go."""
        if self.construction == "except_one" or (self.construction == "clause" and self.depth):
            return f"{self.named.second} {self.named.thing}"
        return self.named.other if self.construction == "scoped" else self.named.thing


def iter_pairs(split: str, count: int) -> Iterator[Pair]:
    """Yield `count` pairs, the cells in turns."""
    return (Pair(*facts) for facts in _draw_fields(split, count, "scope", CELLS))


def iter_edits(split: str, count: int) -> Iterator[Edit]:
    """Yield `count` edits, cells in turns: `EACH` of every cell without a denial above, then the others."""
    cells: list[Cell] = []
    for depth in DEPTHS:
        cells += [cell for cell in CELLS if cell[2] == depth] * EACH
    return (Edit(*facts) for facts in _draw_fields(split, count, "scope edits", cells))


def _draw_fields(split: str, count: int, purpose: str, cells: Sequence[Cell]) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of `count` pairs ("scope") or edits ("scope edits"), the cells in turns."""
    total = index = 0
    while total < count:
        rng = rng_for(split, index, purpose)
        construction, others, depth = cells[total % len(cells)]
        index += 1
        thing = rng.choice([name for name in THINGS if len(LOOKS[name].colors) > 1])
        other = rng.choice([name for name in THINGS if name != thing])
        named = Named(thing, other, *rng.sample(LOOKS[thing].colors, 2))
        first, second, *edit = _THINGS[construction]
        scenes = _draw_scenes(rng, named, others, (first, second) if purpose == "scope" else (edit[depth],))
        if scenes is not None:
            total += 1
            yield construction, named, others, depth, scenes


def _draw_scenes(
    rng: random.Random, named: Named, others: int, letter_groups: Sequence[str]
) -> tuple[Scene, ...] | None:
    """A scene for each group of letters of `_THINGS`, else alike; None without room."""
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
    """The items and further ones of the given categories and colors; None without room."""
    for category, color in things:
        for _ in range(_ATTEMPTS):
            item = place(rng, category, items)
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
    """Write `scope.json` and images/: caption k is true of image k; denies_k: it has a denying word."""
    rows = []
    for number, pair in enumerate(iter_pairs(split, count)):
        texts = write_twins(pair.construction, pair.named, pair.depth)
        row: dict[str, str | int | bool] = {}
        for k, (scene, text) in enumerate(zip(pair.scenes, texts, strict=True)):
            row[f"image_{k}"] = f"images/{number:05d}_{k}.png"
            row[f"caption_{k}"] = text
            row[f"denies_{k}"] = bool(pair.depth) or DENIES[pair.construction][k]
            write_png(root / f"images/{number:05d}_{k}.png", render(scene))
        rows.append({**row, "construction": pair.construction, "others": pair.others, "depth": pair.depth})
    _write_last(root / PAIRS_FILE, rows)


def write(root: Path, split: str, count: int) -> None:
    """Write `count` edits in NeIn's layout, with {family, object, others, depth, things: [{name, stays,
    without}]}: without_<split>/<without>.png is the sample without the thing."""
    targets, samples, without = (root / f"{name}_{split}" for name in ("coco_for", "nein", "without"))
    records = []
    for number, edit in enumerate(iter_edits(split, count), start=1):
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
            "T_original": write_captions(edit.target, rng_for(split, number, "scope captions"), 1)[0],
            "T_negative": write_twins(edit.construction, edit.named, edit.depth)[0],
            "T_generated": f"Add {add_article(edit.object)}.",
            "NeIn": sample,
        }
        facts = {"family": edit.construction, "object": edit.object, "others": edit.others}
        records.append({**record, **facts, "depth": edit.depth, "things": things})
    _write_last(root / f"{split}.json", records)


def _write_last(path: Path, rows: Sequence[Any]) -> None:
    """Write the file whose presence shows a complete folder."""
    path.write_text(f"{json.dumps(rows, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
