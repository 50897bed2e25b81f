"""What the tests of NegVQA share: tiny models, files of questions, and running the command."""

import csv
import json
from string import ascii_lowercase

from nein.benchmarks.negvqa.data import AnswersDir
from nein.benchmarks.runner import select_rows
from nein.engine import images
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.metrics.tiny import SMALL, picture, seeded, speaking, tokenizer


def make_instructblip(folder, seed=0):
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", ":", *ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join([*pieces, *(f"##{char}" for char in ascii_lowercase)]))
    asked = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=128)
    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    part = {**SMALL, "initializer_range": 0.3}
    reads = {"vocab_size": len(asked), "encoder_hidden_size": 32, "cross_attention_frequency": 1}
    with seeded(seed):
        config = transformers.InstructBlipConfig(
            vision_config={**part, "image_size": 32, "patch_size": 8}, qformer_config={**part, **reads},
            text_config={"model_type": "llama", **speaking(words)},
            num_query_tokens=4, image_token_index=words.convert_tokens_to_ids("<image>"),
        )  # fmt: skip
        model = transformers.InstructBlipForConditionalGeneration(config)
        model.generation_config.eos_token_id = words.eos_token_id
        model.generation_config.pad_token_id = words.pad_token_id
        model.language_projection.weight.data.mul_(20)
        model.save_pretrained(folder)
    looks = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    transformers.InstructBlipProcessor(looks, words, asked, num_query_tokens=4).save_pretrained(folder)


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
    rows = records() if rows is None else rows
    for number, name in enumerate(dict.fromkeys(str(row["image"]) for row in rows)):
        if name.endswith(".png"):
            images.write_png(folder / name, picture(number))
    file = folder / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(*arguments):
    return commands.exit_code("negvqa", *arguments)


def figure(folder, **where):
    found = frames.pick(frames.read(folder / "figures.csv"), **where)
    assert found is not None, where
    return found


def answers(folder, stage="answers"):
    """What was asked and answered, of the selected questions."""
    return list(select_rows(AnswersDir(folder), stage))


def scores(folder):
    """The lines of a run's scores.csv, as texts."""
    with (folder / "scores.csv").open(newline="") as file:
        return list(csv.DictReader(file))
