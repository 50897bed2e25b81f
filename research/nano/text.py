"""Tokenizers of the nano zoo, learned from affirmative text: captions, instructions, names, questions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, WordPiece

from nein.nano.captions import PLACES, captions, names, plural
from nein.nano.draw import CATEGORIES, PALETTE
from nein.nano.scenes import rng_for, sample_scene
from nein.wording.templates import indefinite
from train.instruct.drawn import all_instruction_forms

#: Nouns that captions may contain and that are never things in a nano picture.
OTHER_NOUNS = (
    "view", "picture", "image", "photo", "scene", "space", "left", "right", "front", "top", "side", "couple",
    "group", "it", "that", "something", "house", "tree", "river", "window", "hat", "spoon", "horse",
    "elephant", "zebra", "truck", "train", "sandwich", "knife", "bed", "toilet", "sink", "suitcase",
    "tie", "bear cub",
)  # fmt: skip


def corpus(scenes: int = 3000) -> list[str]:
    """Affirmative sentences about the training scenes; contains every word the models are trained on."""
    lines: list[str] = []
    for index in range(scenes):
        rng = rng_for("train", index, "tokenizer")
        lines += captions(sample_scene(rng, rng.randint(1, 4)), rng)
    words = [n for c in CATEGORIES for n in names(c)]
    words += [n for nouns, _, _ in PLACES.values() for n in nouns] + list(OTHER_NOUNS) + list(PALETTE)
    for word in words:
        lines += [word, indefinite(word), plural(word)] * 20
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


def save_tokenizer(tokenizer: Any, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
