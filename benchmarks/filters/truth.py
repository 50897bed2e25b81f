"""What is really in an edited nano picture, measured by the drawing code and by no trained model.

An edited picture G is compared with the reference R, the known scene without the category in question, and
with R with one drawing P of the category pasted in. Over the drawing (coverage w) and a rim of two pixels:

    M = sum w |R - P|^2                              how far the drawing is from what was there before
    N = sum w |G - P|^2 + sum (rim - w) |G - R|^2    how far G is from "this drawing was added"
    score = 1 - N / M                                (`FLOOR` is added to M: it may be near 0)

The score is 1 where the drawing stands in G exactly and 0 where G is still R; it is maximised over colour,
size, mirroring and place. A category is present when its score reaches `PRESENT` and no category that the
scene lacks explains the same place better. An object of the scene is intact when one minus the ratio of the
squared errors over its mask, to the drawing and to the scene without it, reaches `INTACT`: a smear of the
right colours and outline does, half an object does not. `error_rates` is how often that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import scipy.fft
import scipy.ndimage
from PIL import Image

from nein.metrics.images import FLOOR, INTACT, there
from nein.nano.draw import CATEGORIES, LOOKS, SIZE, SUPERSAMPLE, layer
from nein.nano.scenes import Item, Scene, mask, place, render, rng_for, sample_scene

SIZES = tuple(range(14, 26, 2))  #: of the drawings tried; scenes use 15 to 23
RIM = 2
NEAR = 6  # pixels between the centres of a drawing and its rival
_PAD = 4
_SIDE = SIZE + 2 * _PAD  # 72 = 2^3 * 3^2: a good length for the FFT
_AT_ONCE = 16  # drawings: what is made of them stays in the processor's cache
PRESENT = 0.4


@dataclass(frozen=True)
class Match:
    """The drawing of a category that explains a picture best, its score (below 0: the picture contradicts
    it), and the best of the other categories at the same place."""

    category: str
    score: float
    item: Item
    rival: tuple[str, float]

    @property
    def present(self) -> bool:
        return self.score >= PRESENT and self.score >= self.rival[1]


@dataclass(frozen=True)
class _Drawings:
    """Every drawing tried: what it is, and its kernels in the frequency domain."""

    items: tuple[Item, ...]
    extents: np.ndarray  # (K, 2) width, height in pixels
    weight: np.ndarray  # (K, side, side // 2 + 1) complex64: coverage
    ring: np.ndarray  # coverage subtracted from the support with its rim
    paint: np.ndarray  # (K, 3, ...) coverage times colour
    energy: np.ndarray  # (K,) sum of coverage times squared colour
    area: np.ndarray  # (K,) sum of coverage


def find(picture: np.ndarray, scene: Scene, category: str) -> Match:
    """`category` in `picture`, (64, 64, 3) uint8, an edited rendering of `scene`, whose own object of the
    category is found as well: the reference is the scene without it."""
    scores = _scores(_unit(picture), _unit(render(scene.without(category))))
    drawings = _drawings()
    candidates = [k for k, item in enumerate(drawings.items) if item.category == category]
    best = max(candidates, key=lambda k: float(scores[k].max()))
    y, x = np.unravel_index(int(scores[best].argmax()), scores[best].shape)
    centre = np.array([x, y]) + drawings.extents[best] / 2
    rival = ("", -np.inf)
    for k, item in enumerate(drawings.items):
        if item.category == category or item.category in scene.categories:
            continue
        # The drawings whose centres are within `NEAR` of this one's.
        left, top = (centre - drawings.extents[k] / 2).astype(int)
        window = scores[k, max(0, top - NEAR) : max(0, top + NEAR + 1),
                        max(0, left - NEAR) : max(0, left + NEAR + 1)]  # fmt: skip
        if window.size and window.max() > rival[1]:
            rival = (item.category, float(window.max()))
    item = replace(drawings.items[best], x=float(x), y=float(y))
    return Match(category, float(scores[best, y, x]), item, rival)


def is_present(picture: np.ndarray, scene: Scene, category: str) -> bool:
    return find(picture, scene, category).present


def intactness(picture: np.ndarray, scene: Scene) -> list[float]:
    """For every object of `scene`: 1 where its pixels in `picture` are the scene's, 0 where they are those of
    the scene without it; also below 0."""
    _unit(picture)
    whole, items = render(scene), enumerate(scene.items)
    return [there(picture, whole, render(_without(scene, at)), mask(item)) for at, item in items]


def all_intact(picture: np.ndarray, scene: Scene) -> bool:
    return all(value >= INTACT for value in intactness(picture, scene))


# --- The measurement's own errors ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A picture whose content is known by construction."""

    kind: str
    picture: np.ndarray
    scene: Scene
    category: str
    present: bool
    intact: bool


KINDS = ("added", "unchanged", "another", "replaced", "removed", "damaged")


def trials(
    count: int, rebuild: Callable[[np.ndarray], np.ndarray] | None = None, seed: int = 0
) -> Iterator[Trial]:
    """`count` pictures of every kind in `KINDS`, from scenes of their own.

    added      The category was drawn into the scene.
    unchanged  Nothing was done.
    another    Another category was drawn in.
    replaced   The category was drawn over an object of the scene.
    removed    An object of the scene was taken out; the category asked for is that object's.
    damaged    The left half of an object was painted over with what is behind it; nothing was added.
    rebuild    Passes every picture through an autoencoder, as an editor's pictures are.
    """
    for index in range(count):
        rng = rng_for("truth", index, f"trial-{seed}")
        scene = sample_scene(rng, rng.choice((1, 2, 2, 3)))
        absent = [c for c in CATEGORIES if c not in scene.categories]
        asked, other = rng.sample(absent, 2)
        for kind in KINDS:
            after, category, present = scene, asked, kind in ("added", "replaced")
            if kind in ("added", "another"):
                placed = place(rng, asked if kind == "added" else other, scene.items)
                if placed is None:
                    continue  # no room
                after = scene.with_item(placed)
            elif kind in ("removed", "replaced"):
                gone = rng.randrange(len(scene.items))
                after, old = _without(scene, gone), scene.items[gone]
                if kind == "removed":
                    category = old.category
                    present = category in after.categories
                else:
                    look = LOOKS[asked]
                    x = min(old.x, SIZE - round(old.size * look.width))
                    y = min(old.y, SIZE - round(old.size * look.height))
                    colour = rng.choice(look.colours)
                    after = after.with_item(Item(asked, colour, old.size, max(0.0, x), max(0.0, y), False))
            picture = _damaged(scene) if kind == "damaged" else render(after)
            intact = kind in ("added", "unchanged", "another")
            yield Trial(kind, rebuild(picture) if rebuild else picture, scene, category, present, intact)


def error_rates(trials_made: Sequence[Trial]) -> dict[str, dict[str, float | int]]:
    """Kind of trial -> how many, and the shares in which presence and intactness are measured wrongly."""
    rows: dict[str, dict[str, float | int]] = {}
    for kind in dict.fromkeys(t.kind for t in trials_made):
        of_kind = [t for t in trials_made if t.kind == kind]
        presence = [is_present(t.picture, t.scene, t.category) != t.present for t in of_kind]
        intact = [all_intact(t.picture, t.scene) != t.intact for t in of_kind]
        rows[kind] = {
            "pictures": len(of_kind),
            "presence_wrong": sum(presence) / len(of_kind),
            "intactness_wrong": sum(intact) / len(of_kind),
        }
    return rows


def _damaged(scene: Scene) -> np.ndarray:
    """The scene with the left half of its first object missing."""
    picture, behind = render(scene).copy(), render(_without(scene, 0))
    where = mask(scene.items[0])
    where[:, round(scene.items[0].centre[0]) :] = False
    # The soft edge as well: pixels that the object covers by less than half.
    where = scipy.ndimage.binary_dilation(where, np.ones((3, 3), bool))
    picture[where] = behind[where]
    return picture


def _without(scene: Scene, index: int) -> Scene:
    return replace(scene, items=(*scene.items[:index], *scene.items[index + 1 :]))


# --- Arithmetic ---------------------------------------------------------------------------------------------


def _unit(picture: np.ndarray) -> np.ndarray:
    """(64, 64, 3) uint8 -> float32 from 0 to 1."""
    if picture.shape != (SIZE, SIZE, 3) or picture.dtype != np.uint8:
        raise ValueError(f"a nano picture is ({SIZE}, {SIZE}, 3) uint8, not {picture.shape} {picture.dtype}")
    return picture.astype(np.float32) / 255


@lru_cache(maxsize=1)
def _drawings() -> _Drawings:
    items = tuple(
        Item(category, colour, size, 0.0, 0.0, flip)
        for category, look in LOOKS.items()
        for colour in look.colours
        for size in SIZES
        for flip in ((False, True) if look.mirror else (False,))
        if round(size * look.height) <= SIZE
    )
    weight, ring, paint, energy, extents = [], [], [], [], []
    reach = np.ones((2 * RIM + 1, 2 * RIM + 1), bool)
    side, corner = _SIDE * SUPERSAMPLE, (_PAD * SUPERSAMPLE, _PAD * SUPERSAMPLE)
    for item in items:
        drawing = layer(item.category, item.colour, item.size, item.flip)
        colour, cover = Image.new("RGB", (side, side)), Image.new("L", (side, side))
        colour.paste(drawing, corner, drawing)
        cover.paste(drawing.getchannel("A"), corner)
        w = np.asarray(cover.reduce(SUPERSAMPLE), np.float32) / 255
        weight.append(w)
        ring.append(scipy.ndimage.binary_dilation(w > 0, reach).astype(np.float32) - w)
        paint.append(np.moveaxis(np.asarray(colour.reduce(SUPERSAMPLE), np.float32) / 255, -1, 0))
        energy.append(((np.asarray(colour, np.float32) / 255) ** 2).sum() / SUPERSAMPLE**2)
        extents.append((drawing.width / SUPERSAMPLE, drawing.height / SUPERSAMPLE))
    covers, rims, paints = (_frequencies(np.stack(images)).conj() for images in (weight, ring, paint))
    areas = np.stack(weight).sum((1, 2))
    return _Drawings(items, np.array(extents), covers, rims, paints, np.array(energy, np.float32), areas)


def _frequencies(images: np.ndarray) -> np.ndarray:
    return scipy.fft.rfft2(images.astype(np.float32), s=(_SIDE, _SIDE))


def _scores(picture: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(K, 64, 64) float32: (M - N) / M of every drawing with its top left corner at (row, column); -inf where
    it would leave the picture."""
    drawings = _drawings()
    planes = np.zeros((9, _SIDE, _SIDE), np.float32)
    rows = columns = slice(_PAD, _PAD + SIZE)
    planes[0, rows, columns] = (picture**2).sum(-1) - (reference**2).sum(-1)
    planes[1, rows, columns] = ((picture - reference) ** 2).sum(-1)
    planes[2, rows, columns] = (reference**2).sum(-1)
    planes[3:6, rows, columns] = np.moveaxis(picture - reference, -1, 0)
    planes[6:9, rows, columns] = np.moveaxis(reference, -1, 0)
    f = _frequencies(planes)
    scores = np.empty((len(drawings.items), SIZE, SIZE), np.float32)
    for start in range(0, len(scores), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        worse = drawings.weight[part] * f[0] + drawings.ring[part] * f[1]
        alone = drawings.weight[part] * f[2]
        for channel in range(3):
            worse -= drawings.paint[part, channel] * (2 * f[3 + channel])
            alone -= drawings.paint[part, channel] * (2 * f[6 + channel])
        n_minus_m = scipy.fft.irfft2(worse, s=(_SIDE, _SIDE))[:, :SIZE, :SIZE]
        m = scipy.fft.irfft2(alone, s=(_SIDE, _SIDE))[:, :SIZE, :SIZE] + drawings.energy[part, None, None]
        scores[part] = -n_minus_m / (np.maximum(m, 0) + FLOOR * drawings.area[part, None, None])
    for k, (width, height) in enumerate(drawings.extents):
        scores[k, SIZE - int(height) + 1 :] = -np.inf
        scores[k, :, SIZE - int(width) + 1 :] = -np.inf
    return scores
