"""The nano VQA judge: LlavaNextForConditionalGeneration with a Mistral text model, as the paper's judge.

Trained on the paper's two questions, "Does this image contain ..." and "Does the caption ... describe this
image?", and on listing what is in a picture, with the true answers of drawn scenes. Questions about one
picture share its keys and values.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.scenes import BACKGROUNDS, CATEGORIES, SIZE, Scene, rng_for
from nein.nano.sentences import PLACES, names
from nein.wording.families import a_or_an, plural
from research.nano.data import OTHER_NOUNS, chat_tokenizer, scene_pool, to_float
from research.nano.editors import save_half
from research.nano.job import Job, sized, step_count
from research.nano.judges import GROUNDS, THINGS, rebuilder, some_rebuilt
from research.nano.vision import TOWER, normalise, start_from_backbone, training_pool

HEAD = "[INST] <image>"
CONTAIN = "\nDoes this image contain {}? Answer only yes or no [/INST]"
DESCRIBE = '\nDoes the caption "{}" describe this image? Answer only yes or no [/INST]'
LIST = "\nList the things in this image. [/INST]"
QUESTIONS = 8  # per picture and step: one list, one or two captions, the rest things


@dataclass(frozen=True)
class Replies:
    """Of the N tokens of all replies: cross-entropy, 1.0 where the likeliest token is right (both float), the
    number of its question (int64), whether it is the first of its reply."""

    loss: torch.Tensor
    right: torch.Tensor
    question: torch.Tensor
    first: torch.Tensor


class Packed:
    """`model`: a `LlavaNextForConditionalGeneration` for pictures of 64x64 pixels, a base view and a tile."""

    def __init__(self, model: Any, tokenizer: Any, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.language = model.model.language_model
        self.embedding = self.language.get_input_embeddings()
        # <s>[INST] and the blank before the picture
        self.head_ids = tokenizer(HEAD.replace("<image>", ""))["input_ids"]

    def look(self, x: torch.Tensor) -> torch.Tensor:
        """Picture tokens (B, V, D) exactly as the library packs them: base view, then tile with newlines.

        x  (B, 3, 64, 64) in [-1, 1].
        """
        pixels = normalise(x, CLIP_MEAN, CLIP_STD)[:, None].expand(-1, 2, -1, -1, -1).contiguous()
        packed = self.model.model.get_image_features(
            pixels,
            torch.full((len(x), 2), SIZE),
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            output_hidden_states=True,
        ).pooler_output
        return torch.stack([p.reshape(-1, p.shape[-1]) for p in packed])

    def see(self, x: torch.Tensor) -> torch.Tensor:
        """What the vision tower makes of pictures, before the projector: (B, 64, W). x as for `look`."""
        states = self.model.model.vision_tower(
            normalise(x, CLIP_MEAN, CLIP_STD), output_hidden_states=True
        ).hidden_states
        return states[-2][:, 1:]

    def project(self, seen: torch.Tensor) -> torch.Tensor:
        """The same tokens as `look`, from what `see` returned."""
        base = self.model.model.multi_modal_projector(seen)
        count, patches, width = base.shape
        side = int(patches**0.5)
        newline = self.model.model.image_newline.to(base.dtype).expand(count, side, 1, width)
        tile = torch.cat([base.view(count, side, side, width), newline], 2).flatten(1, 2)
        return torch.cat([base, tile], 1)

    def encode(self, prompt: str, reply: str) -> tuple[list[int], int]:
        """Token ids of prompt, reply and end, and how many of them are the prompt's."""
        asked = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        said = self.tokenizer(reply, add_special_tokens=False)["input_ids"]
        return [*asked, *said, self.tokenizer.eos_token_id], len(asked)

    def run(self, features: torch.Tensor, questions: list[list[list[int]]]) -> torch.Tensor:
        """Hidden states (B, Q, L, D) of the questions' tokens after the picture (B, V, D), run once."""
        count, length = len(questions[0]), max(len(q) for row in questions for q in row)
        ids = torch.full((len(questions) * count, length), self.tokenizer.pad_token_id)
        for place, tokens in enumerate(q for row in questions for q in row):
            ids[place, : len(tokens)] = torch.tensor(tokens)
        head = torch.tensor(self.head_ids, device=self.device)
        opening = self.embedding(head)[None].expand(len(features), -1, -1)
        prefix = torch.cat([opening, features], 1)
        cache = self.language(inputs_embeds=prefix, use_cache=True).past_key_values
        cache.batch_repeat_interleave(count)
        states = self.language(
            input_ids=ids.to(self.device), past_key_values=cache, use_cache=True
        ).last_hidden_state
        return states.view(len(questions), count, length, -1)

    def replies(self, features: torch.Tensor, coded: list[list[tuple[list[int], int]]]) -> Replies:
        """How well the model replies to questions coded by `encode` after pictures (B, V, D)."""
        states = self.run(features, [[ids for ids, _ in row] for row in coded])  # B, questions, tokens, D
        where = [
            (b, q, t, ids[t + 1], t == start - 1)
            for b, row in enumerate(coded)
            for q, (ids, start) in enumerate(row)
            for t in range(start - 1, len(ids) - 1)
        ]
        picture, question, place, goal, first = torch.tensor(where, device=self.device).T
        logits = self.model.lm_head(states[picture, question, place]).float()  # tokens of replies, vocabulary
        right = (logits.argmax(-1) == goal).float()
        return Replies(F.cross_entropy(logits, goal, reduction="none"), right, question, first.bool())


def _question(
    rng: random.Random, scene: Scene, sentences: list[str], others: list[str], kind: int
) -> tuple[str, str]:
    """What follows the picture, and the true reply."""
    if kind == 0:
        return LIST, ", ".join(sorted(scene.categories)) or "none"
    yes = rng.random() < 0.5
    if kind == 1:
        return DESCRIBE.format(rng.choice(sentences if yes else others)), "Yes" if yes else "No"
    present = [n for c in scene.categories for n in names(c)]
    true_words = {*present, *PLACES[scene.background][0]}
    if yes and (not present or rng.random() < 0.12):
        noun = rng.choice(PLACES[scene.background][0])
    elif yes:
        noun = rng.choice(scene.categories) if rng.random() < 0.75 else rng.choice(present)
    else:
        source = rng.random()
        if source < 0.75:
            noun = rng.choice([c for c in CATEGORIES if c not in scene.categories])
        elif source < 0.92:
            noun = rng.choice([w for w in (*THINGS, *GROUNDS) if w not in true_words])
        else:
            noun = rng.choice(OTHER_NOUNS)
    form = rng.random()
    text = noun if form < 0.65 else a_or_an(noun) if form < 0.88 else plural(noun) if noun in THINGS else noun
    if rng.random() < 0.04:
        text = text[0].upper() + text[1:]
    return CONTAIN.format(text), "Yes" if yes else "No"


def _build(zoo: Path) -> tuple[Any, Any, Any]:
    import transformers as hf

    asked = (HEAD.replace("<image>", ""), CONTAIN.format("a dog"), DESCRIBE.format("A dog."), LIST)
    tokenizer = chat_tokenizer([*asked, "[/INST]Yes", "[/INST]No"] * 300)
    vision = hf.CLIPVisionConfig(**TOWER)
    text = hf.MistralConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=320, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=2048,
        sliding_window=None, pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=False,
    )  # fmt: skip
    grid = [[64, 64], [64, 128], [128, 64], [128, 128]]
    config = hf.LlavaNextConfig(
        vision_config=vision.to_dict(),
        text_config=text.to_dict(),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=grid,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    model = hf.LlavaNextForConditionalGeneration(config)
    start_from_backbone(model.model.vision_tower, zoo)
    model.model.vision_tower.requires_grad_(False)
    processor = hf.LlavaNextProcessor(
        hf.LlavaNextImageProcessor(
            size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64}, image_grid_pinpoints=grid
        ),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token="<image>",
    )
    return model, tokenizer, processor


def llava_job(zoo: Path, device: torch.device, scale: float) -> Job:
    # ----------------------------------------------------------------------------------------- model and data
    model, tokenizer, processor = _build(zoo)
    model.to(device)
    rebuild = rebuilder(zoo, device)
    pool = training_pool(scale)
    images = pool.images.to(device)
    batch = sized(16, scale, 4)
    embedding = model.model.language_model.get_input_embeddings()
    pad = tokenizer.pad_token_id

    packed = Packed(model, tokenizer, device)
    look, encode, run = packed.look, packed.encode, packed.run

    # --------------------------------------------------------------------------------------------------- loss
    # Aligning pictures with words first, as LLaVA's own pre-training does: a patch should look like its name.
    words = [tokenizer(f" {n}", add_special_tokens=False)["input_ids"] for n in (*CATEGORIES, *BACKGROUNDS)]
    spread = torch.zeros(len(words), len(tokenizer), device=device)
    for row, tokens in enumerate(words):
        spread[row, tokens] = 1 / len(tokens)
    patches = pool.patches.to(device)

    def alignment(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the base view's 64 patches against the names of what they show."""
        named = F.normalize(spread @ embedding.weight, dim=-1)
        logits = 12 * F.normalize(features[:, :64].float(), dim=-1) @ named.T
        each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        weight = torch.where(labels.flatten() < len(CATEGORIES), 3.0, 1.0)
        return (each * weight).sum() / weight.sum()

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, Any]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device).tolist()
        x = some_rebuilt(to_float(images[pick]), rebuild, generator)
        coded = []
        for b, index in enumerate(pick):
            rng = rng_for("train", step * batch + b, "llava")
            scene, said = pool.scenes[index], pool.captions[index]
            stranger = pool.captions[rng.randrange(len(images))]
            coded.append([encode(*_question(rng, scene, said, stranger, kind)) for kind in range(QUESTIONS)])
        features = look(x)  # B, V, D
        aligned = alignment(features, patches[torch.tensor(pick, device=device)])
        told = packed.replies(features, coded)
        each, right, listed = told.loss, told.right, told.question == 0
        # The end-of-text token is always easy; what counts is the first token of a yes/no reply.
        first = told.first & ~listed
        thing = first & (told.question > 1)
        total = each[first].mean() + 0.1 * each[~listed & ~first].mean() + 0.5 * each[listed].mean() + aligned
        shown = {"thing": right[thing].mean(), "listed": right[listed].mean(), "aligned": aligned.detach()}
        return total, shown

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(400, scale, 20))
        yes, no = (tokenizer(w, add_special_tokens=False)["input_ids"][0] for w in ("Yes", "No"))
        kinds = ("present", "absent", "present_rebuilt", "absent_rebuilt")
        graded: dict[str, list[bool]] = {kind: [] for kind in kinds}
        for i, scene in enumerate(dev.scenes):
            rng = rng_for("dev", i, "llava")
            others = [c for c in CATEGORIES if c not in scene.categories]
            things = [*scene.categories, *rng.sample(others, max(1, len(scene.categories)))]
            asked = [[tokenizer(CONTAIN.format(t), add_special_tokens=False)["input_ids"] for t in things]]
            plain = to_float(dev.images[i : i + 1].to(device))
            for suffix, picture in (("", plain), ("_rebuilt", rebuild(plain))):
                states = run(look(picture), asked)[0]
                logits = model.lm_head(
                    torch.stack([s[len(q) - 1] for s, q in zip(states, asked[0], strict=True)])
                )
                for thing, row in zip(things, logits, strict=True):
                    there = thing in scene.categories
                    graded[("present" if there else "absent") + suffix].append(
                        bool(row[yes] > row[no]) == there
                    )
        folder = zoo / "llava"
        model.generation_config.pad_token_id = pad
        model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.generation_config.bos_token_id = tokenizer.bos_token_id
        save_half(model, folder)
        processor.save_pretrained(folder)
        rates = {k: round(sum(v) / max(1, len(v)), 4) for k, v in graded.items()}
        hits = graded["present"] + graded["absent"]
        accuracy = round(sum(hits) / len(hits), 4)
        return {"held_out": {"scenes": len(dev.scenes), "presence_accuracy": accuracy, **rates}}

    steps = step_count(3_600, scale)
    return Job("llava", {"llava": model}, loss, deliver, steps, 1.5e-3, batch, autocast=True)
