"""What the nano models learn from: scenes and edit pairs, drawn by all cores; tokenizers."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, WordPiece

from nein.nano.scenes import (
    BACKGROUNDS,
    CATEGORIES,
    LOOKS,
    PALETTE,
    SIZE,
    SUPERSAMPLE,
    Item,
    Scene,
    render,
    rng_for,
    sample_scene,
)
from nein.nano.sentences import PLACES, names, write_captions
from nein.train.editor_finetuning import drawn
from nein.train.editor_finetuning.drawn import MIXTURES, Pair, draw_kind, move, write_instruction
from nein.wording.families import a_or_an, plural

_CHUNK = 500
MARK = ("mark the {n} in red", "segment the {n}", "colour the pixels of the {n} red", "highlight the {n}")
RESTORE = ("clean up the image", "sharpen the image", "restore the image", "take the noise away")
#: Editor -> the kinds of pairs that it learned from, and their style (see `pair_pool`).
_DRAW, _CLEAN = MIXTURES["ip2p"][0], MIXTURES["magicbrush"][0]
ALL_MIXTURES: dict[str, tuple[dict[str, float], str]] = {
    **MIXTURES,
    "base": ({**_DRAW, "remove": 30.0, "add": 26.0, "keep": 11.0, "scenery": 5.0}, "generated"),
    "hqedit": ({**_DRAW, "scenery": 12.0}, "rerendered"),
    "instructdiffusion": ({**_CLEAN, "mark": 20.0, "restore": 8.0}, "clean"),
}


@dataclass
class ScenePool:
    """`images` (N, 3, 64, 64) uint8, `patches` (N, 64) int64: what each 8x8 patch shows (see `patch_labels`),
    the scenes behind them, and five captions each."""

    images: torch.Tensor
    patches: torch.Tensor
    scenes: list[Scene]
    captions: list[list[str]]


@dataclass
class PairPool:
    """`source`, `target` (N, 3, 64, 64) uint8, the instructions, what each patch of the source shows, and
    `named` (N,) int64: the category an instruction is about, -1 where it is about the whole picture."""

    source: torch.Tensor
    target: torch.Tensor
    instructions: list[str]
    kinds: list[str]
    patches: torch.Tensor
    named: torch.Tensor


def _chunks(count: int) -> list[tuple[int, int]]:
    return [(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]


def _parallel(function: Any, jobs: Sequence[Any]) -> list[Any]:
    workers = min(len(jobs) // 2, len(os.sched_getaffinity(0)))
    if workers < 2:
        return [function(job) for job in jobs]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return pool.map(function, jobs, chunksize=1)


def _to_chw(images: list[np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2))


def mask(item: Item) -> np.ndarray:
    """(64, 64) bool: pixels of which the object covers at least half."""
    canvas = Image.new("L", (SIZE * SUPERSAMPLE, SIZE * SUPERSAMPLE))
    canvas.paste(item.draw().getchannel("A"), item.corner)
    return np.asarray(canvas.reduce(SUPERSAMPLE)) >= 128


def patch_labels(scene: Scene) -> np.ndarray:
    """(64,) uint8: index of the category that covers at least 30 % of a patch, else 30 + the background's."""
    ground = len(CATEGORIES) + list(BACKGROUNDS).index(scene.background)
    labels = np.full((8, 8), ground, np.uint8)
    best = np.full((8, 8), 0.3)
    for item in scene.items:
        share = mask(item).reshape(8, 8, 8, 8).mean((1, 3))
        labels = np.where(share >= best, CATEGORIES.index(item.category), labels).astype(np.uint8)
        best = np.maximum(best, share)
    return labels.reshape(-1)


def described(split: str, index: int) -> tuple[Scene, list[str]]:
    """The `index`-th scene of a pool and its five captions."""
    rng = rng_for(split, index, "pool")
    scene = sample_scene(rng, rng.choice((0, 1, 2, 2, 3, 3, 4, 4)))
    return scene, write_captions(scene, rng)


def _scene_chunk(job: tuple[str, int, int]) -> tuple[np.ndarray, np.ndarray, list[Scene], list[list[str]]]:
    split, start, stop = job
    scenes, sentences = [], []
    for index in range(start, stop):
        scene, said = described(split, index)
        scenes.append(scene)
        sentences.append(said)
    return (
        _to_chw([render(s) for s in scenes]),
        np.stack([patch_labels(s) for s in scenes]),
        scenes,
        sentences,
    )


def scene_pool(split: str, count: int) -> ScenePool:
    """`count` scenes with zero to four objects."""
    parts = _parallel(_scene_chunk, [(split, a, b) for a, b in _chunks(count)])
    images = torch.from_numpy(np.concatenate([p[0] for p in parts]))
    patches = torch.from_numpy(np.concatenate([p[1] for p in parts])).long()
    return ScenePool(images, patches, [s for p in parts for s in p[2]], [c for p in parts for c in p[3]])


def sample_pair(rng: random.Random, weights: dict[str, float], usual: bool = False) -> Pair:
    """`drawn.sample_pair` of a kind drawn by `weights`, or one that marks an object or takes noise away."""
    kind = draw_kind(rng, weights)
    if kind not in ("mark", "restore"):
        return drawn.sample_pair(rng, kind, usual)
    source = sample_scene(rng, rng.choice((1, 2, 2, 3, 3, 4)), CATEGORIES)
    category = rng.choice(source.categories)
    if kind == "mark":
        return Pair(source, source, write_instruction(rng, rng.choice(MARK), category), kind, category)
    return Pair(source, source, rng.choice(RESTORE), kind)


def pair_images(pair: Pair, rng: random.Random, style: str) -> tuple[np.ndarray, np.ndarray]:
    """Two (64, 64, 3) uint8 images: source and target."""
    if style == "rerendered":
        pair = replace(pair, target=_rerendered(rng, pair.target))
    source, target = drawn.draw_images(pair, rng, style)
    if pair.kind == "mark":
        covered = np.zeros(source.shape[:2], bool)
        for item in pair.source.items:
            if item.category == pair.named:
                covered |= mask(item)
        red = (0.4 * target + 0.6 * np.array([255, 0, 0])).astype(np.uint8)
        target = np.where(covered[..., None], red, target)
    if pair.kind == "restore":
        noise = np.random.Generator(np.random.PCG64(rng.getrandbits(63))).normal(0, 18, source.shape)
        source = np.clip(source + noise, 0, 255).astype(np.uint8)
    if style == "rerendered":  # another light
        gain = 1 + 0.12 * (rng.random() * 2 - 1)
        shift = 255 * 0.12 * 0.5 * np.array([rng.random() * 2 - 1 for _ in range(3)])
        target = np.clip(target.astype(np.float32) * gain + shift, 0, 255).astype(np.uint8)
    return source, target


def _rerendered(rng: random.Random, scene: Scene) -> Scene:
    """The same things in a newly drawn picture: other colours and places nearby."""
    items: list[Item] = []
    for item in scene.items:
        item = replace(item, color=rng.choice(LOOKS[item.category].colors))
        for _ in range(20):
            candidate = move(rng, item, 28)
            if not any(candidate.overlaps(other) for other in items):
                item = candidate
                break
        items.append(item)
    return replace(scene, background_seed=rng.randrange(200), items=tuple(items))


def _pair_chunk(job: tuple[str, str, dict[str, float], str, bool, int, int]) -> tuple[Any, ...]:
    split, name, weights, style, usual, start, stop = job
    sources, targets, texts, kinds, labels, named = [], [], [], [], [], []
    for index in range(start, stop):
        rng = rng_for(split, index, f"pair/{name}")
        pair = sample_pair(rng, weights, usual=usual)
        source, target = pair_images(pair, rng, style)
        sources.append(source)
        targets.append(target)
        texts.append(pair.instruction)
        kinds.append(pair.kind)
        labels.append(patch_labels(pair.source))
        named.append(CATEGORIES.index(pair.named) if pair.named else -1)
    return _to_chw(sources), _to_chw(targets), texts, kinds, np.stack(labels), np.array(named)


def pair_pool(
    split: str, name: str, weights: dict[str, float], style: str, count: int, usual: bool = False
) -> PairPool:
    """`count` edit pairs.

    style  "generated" (things in the target drift by up to a pixel, as in pairs made by a generator), "clean"
           (everything the instruction leaves alone is pixel-equal), "rerendered" (the whole target is drawn
           anew).
    usual  Added things have their category's usual look.
    """
    parts = _parallel(_pair_chunk, [(split, name, weights, style, usual, a, b) for a, b in _chunks(count)])
    source = torch.from_numpy(np.concatenate([p[0] for p in parts]))
    target = torch.from_numpy(np.concatenate([p[1] for p in parts]))
    patches = torch.from_numpy(np.concatenate([p[4] for p in parts])).long()
    texts, kinds = [t for p in parts for t in p[2]], [k for p in parts for k in p[3]]
    named = torch.from_numpy(np.concatenate([p[5] for p in parts])).long()
    return PairPool(source, target, texts, kinds, patches, named)


def to_float(images: torch.Tensor) -> torch.Tensor:
    """(N, 3, H, W) uint8 -> float32 in [-1, 1]."""
    return images.float() / 127.5 - 1


def degrade(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What an editor's decoder does to a picture, at random: blur, some noise, some light. [-1, 1] float."""
    n, device = len(images), images.device

    def uniform() -> torch.Tensor:
        return torch.rand((n, 1, 1, 1), generator=generator, device=device)

    kernel = torch.tensor([1.0, 2.0, 1.0], device=device) / 4
    weight = (kernel[:, None] * kernel[None, :]).expand(3, 1, 3, 3)
    soft = torch.nn.functional.conv2d(
        torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate"), weight, groups=3
    )
    amount = uniform() * (uniform() < 0.6)
    images = images + amount * (soft - images)
    images = images + 0.06 * uniform() * torch.randn(images.shape, generator=generator, device=device)
    return (images * (1 + 0.1 * (uniform() * 2 - 1)) + 0.1 * (uniform() * 2 - 1)).clamp(-1, 1)


#: Nouns that captions may contain and that are never things in a nano picture.
OTHER_NOUNS = (
    "view", "picture", "image", "photo", "scene", "space", "left", "right", "front", "top", "side", "couple",
    "group", "it", "that", "something", "house", "tree", "river", "window", "hat", "spoon", "horse",
    "elephant", "zebra", "truck", "train", "sandwich", "knife", "bed", "toilet", "sink", "suitcase",
    "tie", "bear cub",
)  # fmt: skip


def all_instruction_forms(rng: random.Random, category: str) -> list[str]:
    """Every sentence form of an edit once, about `category`."""
    forms = [*drawn.ADD, *drawn.DESCRIBE, *drawn.REMOVE, *MARK]
    lines = [write_instruction(rng, f, category) for f in forms for _ in range(2)]
    other = rng.choice(CATEGORIES)
    lines += [write_instruction(rng, f, category, other=other) for f in drawn.REPLACE]
    lines += [
        write_instruction(rng, f, category, color=rng.choice(LOOKS[category].colors)) for f in drawn.RECOLOUR
    ]
    lines += [form for forms in drawn.SCENERY.values() for form in forms]
    return [*lines, *RESTORE, *drawn.FILLERS]


def corpus(scenes: int = 3000) -> list[str]:
    """Affirmative sentences about the training scenes; contains every word the models are trained on."""
    lines: list[str] = []
    for index in range(scenes):
        rng = rng_for("train", index, "tokenizer")
        lines += write_captions(sample_scene(rng, rng.randint(1, 4)), rng)
    words = [n for c in CATEGORIES for n in names(c)]
    words += [n for nouns, _, _ in PLACES.values() for n in nouns] + list(OTHER_NOUNS) + list(PALETTE)
    for word in words:
        lines += [word, a_or_an(word), plural(word)] * 20
    rng = random.Random(0)
    for category in CATEGORIES:
        lines += all_instruction_forms(rng, category)
    return lines


def clip_tokenizer(max_length: int) -> Any:
    """A lower-casing byte-level BPE in CLIP's format."""
    from transformers import CLIPTokenizer

    learner = Tokenizer(
        BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>", continuing_subword_prefix="")
    )
    learner.normalizer = normalizers.Lowercase()
    donor: Any = CLIPTokenizer()
    learner.pre_tokenizer = donor._tokenizer.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1037,
        # The learner numbers letters at the end of a word in the order of a hash table, and ties follow the
        # numbers; named here, they are numbered the same every time.
        special_tokens=["<|startoftext|>", "<|endoftext|>", *(f"{c}</w>" for c in sorted(alphabet))],
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    learner.train_from_iterator([*corpus(), *alphabet], trainer)
    vocab = learner.get_vocab()
    for letter in alphabet:  # CLIP needs every byte with and without the end-of-word mark
        for token in (letter, f"{letter}</w>"):
            vocab.setdefault(token, len(vocab))
    # As in the real CLIP, the special tokens have the highest ids: OWLv2 finds the end of a text by argmax.
    special = ("<|startoftext|>", "<|endoftext|>")
    order = sorted((t for t in vocab if t not in special), key=lambda t: vocab[t])
    vocab = {token: i for i, token in enumerate([*order, *special])}
    merges: Any = [
        tuple(m) if not isinstance(m, str) else m for m in json.loads(learner.to_str())["model"]["merges"]
    ]
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=max_length)


def bert_tokenizer() -> Any:
    """A WordPiece tokenizer in BERT's format, for BLIP."""
    from transformers import BertTokenizer

    learner = Tokenizer(WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer()
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789'.,?!\"")
    trainer = trainers.WordPieceTrainer(
        vocab_size=700,
        special_tokens=[*special, *(f"##{c}" for c in letters)],
        initial_alphabet=letters,
        show_progress=False,
    )
    learner.train_from_iterator([*corpus(), *(f"x{c}" for c in letters for _ in range(3))], trainer)
    vocab = learner.get_vocab()
    for letter in letters:
        for token in (letter, f"##{letter}"):
            vocab.setdefault(token, len(vocab))
    return BertTokenizer(vocab=vocab, model_max_length=48)


def chat_tokenizer(extra: Iterable[str]) -> Any:
    """A byte-level BPE with LLaMA's special tokens and `<image>`, for LLaVA-NeXT."""
    from transformers import PreTrainedTokenizerFast

    learner = Tokenizer(BPE(unk_token=None))
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>", "<image>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1100,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator([*corpus(), *extra], trainer)
    learner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", learner.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<image>"],
        padding_side="left",
        model_max_length=2048,
    )
