"""Nano LLaVA-NeXT that answer two-choice questions with a letter: one taught affirmative questions only, and
that one taught negated ones too, by one of two recipes.

Both start from the nano judge: its vision tower stays as it is and its language model goes on learning. What
the tower makes of the drawn scenes is worked out once, so that a step costs the language model only.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.metrics.choice_prompts import write_prompt
from nein.nano import zoo as shipped
from nein.nano.scenes import CATEGORIES, NANO, TAUGHT, VARIED, WORLDS, Scene, World, render, rng_for
from nein.nano.sentences import ASKED, WORDINGS, Pairs, Question, ask, iter_questions, question_scene
from nein.train.export import add_words
from research.nano.data import chat_tokenizer, to_float
from research.nano.editors import save_half
from research.nano.job import Job, sized, step_count
from research.nano.llava import HEAD, Packed
from research.nano.ship import keep_changes

TAUGHT_WORLD = WORLDS["nano:taught"]
#: The layout of llava-hf's LLaVA-NeXT for Mistral: pictures first, then the text.
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}[INST] "
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %} [/INST]"
    "{% endif %}{% endfor %}"
)
SCENES = 8_000
OPEN = "\n{}\nAnswer in one word. [/INST]"
#: Questions about a picture and step; the last has no options to choose from.
SLOTS = ("presence", "colour", "count", "position", "position", "colour", "open")


@dataclass(frozen=True)
class Recipe:
    """How a model is taught.

    negation  Share of negated questions. They name no held-out object and are asked in no held-out wording.
    wordings  Those of negated questions, and of affirmed ones in addition to `WORDINGS`.
    words     What the tokenizer is taught as tokens of their own.
    twins     Questions come in pairs of one wording with the same options in the same order, one of them
              negated: they differ in the negation alone, and in the letter.
    """

    steps: int
    rate: float
    negation: float = 2 / 3
    wordings: Pairs = field(default_factory=lambda: ASKED[TAUGHT])
    words: tuple[str, ...] = ()
    twins: bool = False


RECIPES = {
    "negvqa": Recipe(8_000, 1.2e-3, negation=0.0),
    "negvqa-negated": Recipe(2_000, 8e-4),
    "negvqa-varied": Recipe(
        2_000,
        8e-4,
        wordings=ASKED[VARIED],
        words=("no", "not", "cannot", "isn't", "aren't", "don't", "doesn't"),
        twins=True,
    ),
}


def letter_question(rng: random.Random, question: Question, negated: bool, form: str) -> tuple[str, str]:
    """What follows the picture, and the letter: options in random order."""
    options = [question.right, question.wrong]
    if rng.random() < 0.5:
        options.reverse()
    goal = question.wrong if negated else question.right
    words = write_prompt(form, question.negated if negated else question.question, options).text
    return f"\n{words} [/INST]", "AB"[options.index(goal)]


def _slots(rng: random.Random, scene: Scene, recipe: Recipe) -> list[tuple[str, str]]:
    """Prompt and reply of every slot."""
    if not recipe.twins:
        return [_slot(rng, scene, slot, recipe) for slot in SLOTS]
    twins = []
    for kind in ("presence", "colour", rng.choice(("count", "position"))):
        question = _question(rng, scene, kind, TAUGHT_WORLD, recipe.wordings)
        state, form = rng.getstate(), _form(rng)
        for negated in (False, True):
            rng.setstate(state)  # the same order of the options
            twins.append(letter_question(rng, question, negated, form))
    return [*twins, _slot(rng, scene, "open", recipe)]


def _slot(rng: random.Random, scene: Scene, slot: str, recipe: Recipe) -> tuple[str, str]:
    """Prompt and reply. Slots that a scene cannot fill ask about presence."""
    if slot == "open":
        question = _question(rng, scene, rng.choice(("colour", "count", "position")), instead="count")
        return OPEN.format(question.question), question.right
    negated = rng.random() < recipe.negation
    question = _question(rng, scene, slot, *((TAUGHT_WORLD, recipe.wordings) if negated else ()))
    return letter_question(rng, question, negated, _form(rng))


def _question(
    rng: random.Random,
    scene: Scene,
    kind: str,
    world: World = NANO,
    wordings: Pairs | None = None,
    instead: str = "presence",
) -> Question:
    """A question of a kind; where the scene allows none, of the kind `instead`, and else of their number."""
    kinds = (kind, instead, "count")
    return next(question for k in kinds if (question := ask(rng, scene, k, world, wordings)) is not None)


def _form(rng: random.Random) -> str:
    return "paper" if rng.random() < 0.85 else "vlmevalkit"


def _words() -> list[str]:
    """Every wording of the affirmative questions, for the tokenizer."""
    rng = random.Random(0)
    lines = [OPEN.format("")]
    for kind, forms in WORDINGS.items():
        for question, _ in forms:
            for form in ("paper", "vlmevalkit"):
                thing = rng.choice(CATEGORIES)
                text = question.format(thing=thing, side="to the left of")
                made_up = Question(kind, text, "", "left", "right")
                lines += [letter_question(rng, made_up, False, form)[0], f"[/INST]{rng.choice('AB')}"]
    return [*lines, "above", "below", "top", "bottom", "to the right of", *"1234"]


def _start(zoo: Path) -> tuple[Any, Any]:
    """The nano judge with a tokenizer that knows the questions' words; tokens of both keep their vectors."""
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration, LlavaNextProcessor

    judge = LlavaNextForConditionalGeneration.from_pretrained(zoo / "llava", dtype=torch.float32)
    before = AutoProcessor.from_pretrained(zoo / "llava")
    old = before.tokenizer.get_vocab()
    tokenizer = chat_tokenizer([HEAD.replace("<image>", ""), *_words()] * 100)
    if len(tokenizer) != len(old):
        raise SystemExit(f"the new tokenizer has {len(tokenizer)} tokens, the judge's {len(old)}")
    for layer in (judge.model.language_model.embed_tokens, judge.lm_head):
        judges = layer.weight.data.clone()
        layer.weight.data[:] = judges.mean(0) + 0.1 * judges.std(0) * torch.randn_like(judges)
        for token, place in tokenizer.get_vocab().items():
            if token in old:
                layer.weight.data[place] = judges[old[token]]
    processor = LlavaNextProcessor(
        before.image_processor, tokenizer, patch_size=8, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, image_token="<image>", chat_template=TEMPLATE,
    )  # fmt: skip
    return judge, processor


def _resume(zoo: Path) -> tuple[Any, Any]:
    """The model taught affirmative questions, to go on from."""
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration

    folder = shipped.complete("negvqa", zoo / "llava", zoo)
    model = LlavaNextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return model, AutoProcessor.from_pretrained(folder)


def _pool(packed: Packed, split: str, count: int) -> tuple[list[Scene], torch.Tensor]:
    """Scenes and what the vision tower makes of them, (N, 64, W) float16."""
    scenes = [question_scene(split, index) for index in range(count)]
    seen = []
    with torch.inference_mode():
        for start in range(0, count, 64):
            drawn = np.stack([render(scene) for scene in scenes[start : start + 64]])
            x = to_float(torch.from_numpy(drawn).permute(0, 3, 1, 2)).to(packed.device)
            seen.append(packed.see(x).half())
    return scenes, torch.cat(seen).clone()


def negvqa_job(name: str, zoo: Path, device: torch.device, scale: float, out: Path | None = None) -> Job:
    """The training of a model of `RECIPES`; all but the first go on from it.

    out  Folder of the whole model. By default what it does not share with its base goes into the zoo.
    """
    recipe = RECIPES[name]
    model, processor = _start(zoo) if name == "negvqa" else _resume(zoo)
    tokenizer = processor.tokenizer
    if recipe.words:
        add_words(tokenizer, model, recipe.words)
    model.to(device).model.vision_tower.requires_grad_(False)
    packed = Packed(model, tokenizer, device)
    batch = sized(8, scale, 2)
    scenes, seen = _pool(packed, "train", max(16, int(SCENES * min(1.0, scale))))

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, Any]]:
        pick = torch.randint(len(scenes), (batch,), generator=generator, device=device).tolist()
        coded = []
        for b, index in enumerate(pick):
            rng = rng_for("train", step * batch + b, name)
            coded.append([packed.encode(*slot) for slot in _slots(rng, scenes[index], recipe)])
        told = packed.replies(packed.project(seen[pick].float().to(device)), coded)
        each, right, other = told.loss, told.right, told.question >= SLOTS.index("open")
        letter = told.first & ~other
        total = each[letter].mean() + 0.5 * each[other].mean() + 0.1 * each[~letter & ~other].mean()
        return total, {"letters": right[letter].mean(), "other": right[other].mean()}

    def deliver() -> dict[str, Any]:
        held_out = _accuracies(packed, sized(600, scale, 16))
        model.generation_config.update(
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
        )
        if out is None:
            # The architecture is the judge's to the last number.
            files = ("tokenizer.json", "chat_template.jinja") if name == "negvqa" else ()
            keep_changes(model, processor, zoo / name, zoo / "llava", files)
        else:
            save_half(model, out)
            processor.save_pretrained(out)
        return {"held_out": held_out}

    steps = step_count(recipe.steps, scale)
    return Job(name, {name: model}, loss, deliver, steps, recipe.rate, batch, warmup=100, ema=0.99)


def _accuracies(packed: Packed, count: int) -> dict[str, float]:
    """Share of right letters on questions of the dev split, by kind, as asked and negated; of the negated
    ones also by whether their wording was held out."""
    graded: dict[str, list[bool]] = {}
    letters = [packed.tokenizer(c, add_special_tokens=False)["input_ids"][0] for c in "AB"]
    for number, scene, question in iter_questions("dev", count):
        x = to_float(torch.from_numpy(render(scene).copy()).permute(2, 0, 1)[None]).to(packed.device)
        rng = rng_for("dev", number, question.kind)
        asked = [letter_question(rng, question, negated, "paper") for negated in (False, True)]
        ids = [packed.tokenizer(text, add_special_tokens=False)["input_ids"] for text, _ in asked]
        states = packed.run(packed.project(packed.see(x)), [ids])[0]
        for negated, tokens, state, (_, letter) in zip((False, True), ids, states, asked, strict=True):
            answer = packed.model.lm_head(state[len(tokens) - 1])[letters].argmax()
            right = "AB"[int(answer)] == letter
            graded.setdefault(f"{question.kind}{', negated' if negated else ''}", []).append(right)
            if negated:
                wording = "held out" if question.held_out else "taught"
                graded.setdefault(f"negated, wordings {wording}", []).append(right)
    share = {kind: round(sum(rights) / len(rights), 4) for kind, rights in sorted(graded.items())}
    return {"questions": count, **share}
