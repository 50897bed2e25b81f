"""What the tests of NegVQA share: a tiny InstructBLIP, files of questions, and running the command."""

import csv
import json

from nein.benchmarks.negvqa.scores import AnswersDir
from nein.benchmarks.runner import selected
from nein.engine import images
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.metrics.tiny import picture, seeded, tokenizer


def make_instructblip(folder, seed=0):
    """An `InstructBlipForConditionalGeneration` on a tiny Llama."""
    from transformers import (
        BertTokenizerFast,
        BlipImageProcessor,
        InstructBlipConfig,
        InstructBlipForConditionalGeneration,
        InstructBlipProcessor,
        InstructBlipQFormerConfig,
        InstructBlipVisionConfig,
        LlamaConfig,
    )

    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", ":", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    asked = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=128)
    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    with seeded(seed):
        config = InstructBlipConfig(
            vision_config=InstructBlipVisionConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                image_size=32, patch_size=8, initializer_range=0.3,
            ).to_dict(),
            qformer_config=InstructBlipQFormerConfig(
                vocab_size=len(asked), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                intermediate_size=64, encoder_hidden_size=32, cross_attention_frequency=1,
                initializer_range=0.3,
            ).to_dict(),
            text_config=LlamaConfig(
                hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=len(words), bos_token_id=words.bos_token_id,
                eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, initializer_range=0.3,
            ).to_dict(),
            num_query_tokens=4,
            image_token_index=words.convert_tokens_to_ids("<image>"),
        )  # fmt: skip
        model = InstructBlipForConditionalGeneration(config)
        model.generation_config.eos_token_id = words.eos_token_id
        model.generation_config.pad_token_id = words.pad_token_id
        model.language_projection.weight.data.mul_(20)
        model.save_pretrained(folder)
    looks = BlipImageProcessor(size={"height": 32, "width": 32})
    InstructBlipProcessor(looks, words, asked, num_query_tokens=4).save_pretrained(folder)
    return folder


def records(count=6):
    """Questions in NegVQA's layout about `count` pictures, two for each, of two subsets."""
    subsets = ("VQAv2", "GQA")
    return [
        {
            "index": 10 + number,
            "image": f"p{number // 2}.png",
            "category": subsets[number % 2],
            "original_question": f"What is number {number}?",
            "negated_question": f"What is not number {number}?",
            "A": f"cat {number}",
            "B": f"dog {number}",
            "original_answer": "AB"[number % 2],
            "negated_answer": "BA"[number % 2],
        }
        for number in range(2 * count)
    ]


def write_questions(folder, rows=None):
    """questions.jsonl with its pictures beside it."""
    rows = records() if rows is None else rows
    for number, name in enumerate(dict.fromkeys(str(row["image"]) for row in rows)):
        if name.endswith(".png"):
            images.write_png(folder / name, picture(number))
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(*arguments):
    """Exit code of `nein negvqa ARGUMENTS`."""
    return commands.exit_code("negvqa", *arguments)


def figure(folder, **where):
    """The one such figure of a run's folder."""
    found = frames.pick(frames.read(folder / "figures.csv"), **where)
    assert found is not None, where
    return found


def answers(folder, stage="answers"):
    """What was asked and answered, of the selected questions."""
    return list(selected(AnswersDir(folder), stage))


def scores(folder):
    """The lines of a run's scores.csv, as texts."""
    with (folder / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))
