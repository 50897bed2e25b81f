"""Draw negation in scope: pairs of scenes and pairs of sentences, each sentence true of one scene only.

    construction  first scene                          second scene
    except_one    a thing                              that and another of its kind, in another color
    neither_nor   neither of two things                the second of them
    scoped        the first of two things              the second
    not_all       two of a kind in two colors          two in the second of these colors
    past          nothing                              a thing
    clause        a thing                              one of its kind, in another color

The sentences are those of `nein.wording.families`; the first of a pair is true of the first scene. Pairs
differ in the number of other things in both scenes, and in the number of denials above the sentence: 0 or 1,
and 0 for "past", where it would not be clear what is denied. For editors (`iter_edits`) the first sentence is
the instruction, and each thing of the scene has a mark: must it be gone after the edit?
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
from nein.wording.families import CONSTRUCTIONS, HAS_DENIAL, THINGS, SceneWords, add_article, write_twins

# --- constructions and their difficulty ------------------------------------------------------------------
OTHERS = (0, 1, 2, 3)  # numbers of other things
DEPTHS = (0, 1)  # numbers of denials above
Cell = tuple[str, int, int]  # construction, other things, denials above
#: All combinations; the pairs take them in turns.
CELLS: tuple[Cell, ...] = tuple(
    (construction, others, depth)
    for depth in DEPTHS
    for others in OTHERS
    for construction in CONSTRUCTIONS
    if not (depth and construction == "past")
)
EDITS_PER_CELL = 10
EDITS = EDITS_PER_CELL * len(CELLS)
# Construction -> things of the first scene, of the second, of an editor's scene, and of one below a denial.
# t: the thing; r, b: the thing in the first or second color; o: the other thing.
#
# In an editor's scene the things after "-" must go, so that the instruction is true afterwards. "Not all cups
# are red." and "There is a cup that is not blue." are true already. Below a denial the instruction says that
# the twin is not true. "There is a dog but no cup." is not true of a cup and a dog, so nothing must go.
# "There is a cup that is blue." is true of a red and a blue cup, so the blue one must go.
_SCENE_LETTERS = {
    "except_one": ("r", "rb", "r-b", "r-b"),
    "neither_nor": ("", "o", "-to", "to"),
    "scoped": ("t", "o", "t-o", "to"),
    "not_all": ("rb", "rr", "rb", "rb"),
    "past": ("", "t", "-t", "-t"),
    "clause": ("r", "b", "rb", "r-b"),
}


# --- pairs and edits -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Pair:
    """Two scenes, and the words of two sentences about them; the k-th sentence is true of scenes[k] only."""

    construction: str
    words: SceneWords
    others: int  # other things in both scenes
    depth: int  # denials above the sentences
    scenes: tuple[Scene, ...]


@dataclass(frozen=True)
class Edit(Pair):
    """The first sentence as an instruction for an editor; `scenes` has one scene, that before the edit."""

    @property
    def scene(self) -> Scene:
        return self.scenes[0]

    @property
    def stays(self) -> tuple[bool, ...]:
        """Whether each thing of the scene stays: the other things come first, those that must go last."""
        letters = _SCENE_LETTERS[self.construction][2 + self.depth]
        staying, _, gone = letters.partition("-")
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
            return f"{self.words.second} {self.words.thing}"
        return self.words.other if self.construction == "scoped" else self.words.thing


def iter_pairs(split: str, count: int) -> Iterator[Pair]:
    """Yield `count` pairs, the cells in turns."""
    return _iter_drawn(Pair, split, count, CELLS)


def iter_edits(split: str, count: int) -> Iterator[Edit]:
    """Yield `count` edits: `EDITS_PER_CELL` of every cell without a denial above, then of those with one."""
    cells: list[Cell] = []
    for depth in DEPTHS:
        cells += [cell for cell in CELLS if cell[2] == depth] * EDITS_PER_CELL
    return _iter_drawn(Edit, split, count, cells)


def _iter_drawn(kind: type[Pair], split: str, count: int, cells: Sequence[Cell]) -> Iterator[Any]:
    """Yield `count` pairs or edits, the cells in turns."""
    total = index = 0  # scenes that were drawn, scenes that were tried
    while total < count:
        rng = rng_for(split, index, "scope edits" if kind is Edit else "scope")
        construction, others, depth = cells[total % len(cells)]
        index += 1
        thing = rng.choice([name for name in THINGS if len(LOOKS[name].colors) > 1])
        other = rng.choice([name for name in THINGS if name != thing])
        color, second = rng.sample(LOOKS[thing].colors, 2)
        letters = _SCENE_LETTERS[construction]
        groups = (letters[2 + depth],) if kind is Edit else letters[:2]  # letters of each scene to draw
        words = SceneWords(thing=thing, other=other, color=color, second=second)
        scenes = _draw_scenes(rng, words, others, groups)
        if scenes is not None:  # else the cell is tried again with the next index
            total += 1
            yield kind(construction, words, others, depth, scenes)


# --- drawing of scenes -----------------------------------------------------------------------------------
Items = tuple[Item, ...]
Thing = tuple[str, str | None]  # a category and its color; None: any color
_ATTEMPTS = 200  # at drawing a thing of a color


def _draw_scenes(
    rng: random.Random, words: SceneWords, others: int, groups: Sequence[str]
) -> tuple[Scene, ...] | None:
    """A scene per group of letters of `_SCENE_LETTERS`; all else in them is the same. None without room."""
    background, background_seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    things: dict[str, Thing] = {"t": (words.thing, None), "o": (words.other, None)}
    things |= {"r": (words.thing, words.color), "b": (words.thing, words.second)}
    names = rng.sample([name for name in CATEGORIES if name not in (words.thing, words.other)], others)
    shared = _add_things(rng, [(name, None) for name in names], ())
    if shared is None:
        return None
    scenes = []
    for letters in groups:
        items = _add_things(rng, [things[letter] for letter in letters.replace("-", "")], shared)
        if items is None:
            return None
        scenes.append(Scene(background, background_seed, items))
    return tuple(scenes)


def _add_things(rng: random.Random, things: Sequence[Thing], items: Items) -> Items | None:
    """`items`, followed by an item for each of `things`; None without room."""
    for category, color in things:
        for _ in range(_ATTEMPTS):
            item = place(rng, category, items)
            if item is None:
                return None
            if color in (None, item.color):
                break
        else:  # no try gave the color
            return None
        items = (*items, item)
    return items


# --- files -----------------------------------------------------------------------------------------------
DATA = "nano:scope"  # `--data` of the edits
PAIRS_FILE = "scope.json"
VERSION = 2  # of the drawings, in the name of the cache folder


def ensure_pairs(split: str, count: int) -> Path:
    """The folder of `count` pairs, drawn on first use."""
    name = f"scope-{split}-{count}-{VERSION}"
    return draw_once(name, lambda draft: write_pairs(draft, split, count), proof=PAIRS_FILE)


def ensure_edits(split: str) -> Path:
    """The folder of the edits in NeIn's layout, drawn on first use."""
    name = f"nano-scope-{split}-{EDITS}-{VERSION}"
    return draw_once(name, lambda draft: write_edits(draft, split, EDITS), proof=f"{split}.json")


def write_pairs(root: Path, split: str, count: int) -> None:
    """Write `scope.json` and images/. caption_k is true of image_k only; denies_k: it has a denying word."""
    rows = []
    for number, pair in enumerate(iter_pairs(split, count)):
        captions = write_twins(pair.construction, pair.words, pair.depth)
        row: dict[str, str | int | bool] = {}
        for k, (scene, caption) in enumerate(zip(pair.scenes, captions, strict=True)):
            image = f"images/{number:05d}_{k}.png"
            row |= {f"image_{k}": image, f"caption_{k}": caption}
            row[f"denies_{k}"] = pair.depth > 0 or HAS_DENIAL[pair.construction][k]
            write_png(root / image, render(scene))
        rows.append({**row, "construction": pair.construction, "others": pair.others, "depth": pair.depth})
    _write_last(root / PAIRS_FILE, rows)


def write_edits(root: Path, split: str, count: int) -> None:
    """Write `count` edits in NeIn's layout. Rows have further keys: family, object, others, depth, things.
    A thing is {name, stays, without}; without_<split>/<without>.png is the sample without it."""
    targets, samples, without = (root / f"{name}_{split}" for name in ("coco_for", "nein", "without"))
    records = []
    for number, edit in enumerate(iter_edits(split, count), start=1):
        source, sample = f"COCO_{number:012d}", f"NeIn_{number:012d}_1"  # stems of image files
        write_png(targets / f"{source}.png", render(edit.target))
        write_png(samples / f"{sample}.png", render(edit.scene))
        things = []
        for k, (item, stays) in enumerate(zip(edit.scene.items, edit.stays, strict=True)):
            rest = (*edit.scene.items[:k], *edit.scene.items[k + 1 :])
            write_png(without / f"{sample}_{k}.png", render(replace(edit.scene, items=rest)))
            name = f"{item.color} {item.category}"
            things.append({"name": name, "stays": stays, "without": f"{sample}_{k}"})
        record = {
            "COCO": source,
            "T_original": write_captions(edit.target, rng_for(split, number, "scope captions"), 1)[0],
            "T_negative": write_twins(edit.construction, edit.words, edit.depth)[0],
            "T_generated": f"Add {add_article(edit.object)}.",
            "NeIn": sample,
        }
        further = {"family": edit.construction, "object": edit.object, "others": edit.others}
        records.append({**record, **further, "depth": edit.depth, "things": things})
    _write_last(root / f"{split}.json", records)


def _write_last(path: Path, rows: Sequence[Any]) -> None:
    """Write the file whose presence shows a complete folder."""
    path.write_text(f"{json.dumps(rows, indent=1, ensure_ascii=False)}\n", encoding="utf-8")
