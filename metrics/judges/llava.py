"""LLaVA-NeXT as a VQA judge. A picture is looked at once, however many questions are asked about it.

Asking one question at a time runs the vision tower and some three thousand image tokens through the language
model for every question, though all prompts about a picture begin the same. Here the common beginning is run
once, and what differs follows it, the questions side by side in one row: a mask lets every token see the
beginning and its own question, and positions count as if the question stood alone. Nothing is repeated per
question. Answers equal those of `generate` called for every question alone.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache

from metrics.base import MetricError, choose
from metrics.judges.base import Answer, check_batch
from metrics.judges.templates import TEMPLATES
from metrics.judges.words import NO, YES, first_tokens
from metrics.layers import read_some_only
from metrics.loading import (
    SharedTokenizer,
    Source,
    exact,
    fingerprint,
    from_pretrained,
    library,
    load_model,
    model_fields,
)


@dataclass(frozen=True)
class _Job:
    """One pass over one picture: the shared beginning and what follows it for every question."""

    image: int
    prefix: tuple[int, ...]
    questions: tuple[int, ...]
    suffixes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Pixels:
    values: torch.Tensor
    size: torch.Tensor
    tokens: int


class LlavaNextJudge:
    """Greedy answers of at most `max_new_tokens` tokens from a `LlavaNextForConditionalGeneration`.

    batch_size  Pictures whose beginnings are run together.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        source: Source,
        *,
        template: str = "llava-mistral",
        quantization: str = "none",
        max_new_tokens: int = 10,
        batch_size: int = 8,
    ) -> None:
        self.model = model
        self.processor = processor
        self.source = source
        self.template = choose("prompt template", template, TEMPLATES)
        self.quantization = quantization
        self.max_new_tokens = max_new_tokens
        self.batch_size = batch_size
        tokenizer = processor.tokenizer
        self._tokenizer = SharedTokenizer(tokenizer)
        self._ids = functools.lru_cache(maxsize=4096)(self._encoded)
        self._token_counts: dict[tuple[int, int], int] = {}
        self._image_id = int(model.config.image_token_id)
        self._image_word = tokenizer.convert_ids_to_tokens(self._image_id)
        eos = model.generation_config.eos_token_id
        eos = tokenizer.eos_token_id if eos is None else eos
        self._eos = {int(e) for e in (eos if isinstance(eos, (list, tuple)) else [eos]) if e is not None}
        yes, no = first_tokens(tokenizer, YES), first_tokens(tokenizer, NO)
        self._yes, self._no = sorted(yes - no), sorted(no - yes)
        self.fingerprint = fingerprint(self.describe())
        _skip_unread_layers(model)
        _look_at_equal_tiles_once(model.model.vision_tower)
        read_some_only(model.model.language_model)

    def describe(self) -> dict[str, Any]:
        """Everything that decides an answer but the prompt, JSON-serialisable."""
        images = self.processor.image_processor
        return {
            "kind": "vqa",
            **model_fields(self.model, self.source),
            "library": library(),
            "preprocess": type(images).__name__,
            "template": self.template,
            "decoding": f"greedy, at most {self.max_new_tokens} tokens",
            "quantization": self.quantization,
        }

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """Answer `questions[i]`, full prompts with one image placeholder each, about `images[i]`.

        A prompt asked twice about a picture is answered once. Raises MetricError for one without a
        placeholder, or with several.
        """
        check_batch(images, questions, "questions")
        for prompt in (p for row in questions for p in row):
            if prompt.count(self._image_word) != 1 or prompt.endswith(self._image_word):
                raise MetricError(
                    f"A prompt must hold {self._image_word} exactly once, and text after it: {prompt!r}."
                )
        unique = [list(dict.fromkeys(row)) for row in questions]
        answer_to: list[dict[str, Answer]] = [{} for _ in images]
        with exact(self.model):
            pixels = self._look({i: image for i, image in enumerate(images) if unique[i]})
            for jobs in self._groups(self._jobs(pixels, unique)):
                for job, answers in zip(jobs, self._run(jobs, pixels), strict=True):
                    for question, answer in zip(job.questions, answers, strict=True):
                        answer_to[job.image][unique[job.image][question]] = answer
        return [[answer_to[i][prompt] for prompt in row] for i, row in enumerate(questions)]

    # ------------------------------------------------------------------------------------------ input

    def _look(self, images: dict[int, np.ndarray]) -> dict[int, _Pixels]:
        """Preprocess pictures and count the tokens that stand for each."""
        looked: dict[int, _Pixels] = {}
        rows = list(images)
        for start in range(0, len(rows), self.batch_size):
            part = rows[start : start + self.batch_size]
            inputs = self.processor.image_processor([images[i] for i in part], return_tensors="pt")
            for k, i in enumerate(part):
                values, sizes = inputs["pixel_values"][k : k + 1], inputs["image_sizes"][k : k + 1]
                looked[i] = _Pixels(values, sizes, self._tokens_of(images[i]))
        return looked

    def _tokens_of(self, image: np.ndarray) -> int:
        """How many tokens stand for a picture: its size decides."""
        height, width = image.shape[:2]
        if (height, width) not in self._token_counts:
            inputs = self.processor(images=image, text=self._image_word, return_tensors="pt")
            self._token_counts[height, width] = int((inputs["input_ids"] == self._image_id).sum())
        return self._token_counts[height, width]

    def _jobs(self, pixels: dict[int, _Pixels], questions: Sequence[Sequence[str]]) -> list[_Job]:
        """Split every prompt into the beginning it shares with all others and the rest.

        The beginning ends at the same place after the image in *every* prompt of the call, so that pictures
        of one size have beginnings of one length and can be run together.
        """
        ids = {
            i: [self._tokens(prompt, look.tokens) for prompt in questions[i]] for i, look in pixels.items()
        }
        heads = {tuple(row[: row.index(self._image_id)]) for rows in ids.values() for row in rows}
        tails = [row[_after(row, self._image_id) :] for rows in ids.values() for row in rows]
        shared = _common(tails) if len(heads) == 1 else None
        jobs = []
        for i, rows in ids.items():
            if shared is not None:
                # At least one token must be left to ask with.
                cut = _after(rows[0], self._image_id) + min(shared, min(map(len, tails)) - 1)
                rest = tuple(tuple(row[cut:]) for row in rows)
                jobs.append(_Job(i, tuple(rows[0][:cut]), tuple(range(len(rows))), rest))
            else:
                # Prompts that differ before the picture share nothing worth keeping.
                jobs += [_Job(i, tuple(row[:-1]), (q,), ((row[-1],),)) for q, row in enumerate(rows)]
        return jobs

    def _tokens(self, prompt: str, count: int) -> list[int]:
        """The ids of a prompt, `count` of them for its picture."""
        ids = self._ids(prompt)
        place = ids.index(self._image_id)
        return [*ids[:place], *[self._image_id] * count, *ids[place + 1 :]]

    def _encoded(self, prompt: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(prompt)["input_ids"])

    def _groups(self, jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
        """Jobs whose beginnings have one length, at most `batch_size` at a time."""
        by_length: dict[int, list[_Job]] = {}
        for job in jobs:
            by_length.setdefault(len(job.prefix), []).append(job)
        for group in by_length.values():
            for start in range(0, len(group), self.batch_size):
                yield group[start : start + self.batch_size]

    # ----------------------------------------------------------------------------------------- answers

    def _run(self, jobs: Sequence[_Job], pixels: dict[int, _Pixels]) -> list[list[Answer]]:
        cache, prefix = self._prefill(jobs, pixels), len(jobs[0].prefix)
        width = max(len(suffix) for job in jobs for suffix in job.suffixes)
        # Of more, what questions do not see of each other would outweigh what they share.
        at_once = max(1, prefix // width)
        answers: list[list[Answer]] = [[] for _ in jobs]
        for start in range(0, max(len(job.suffixes) for job in jobs), at_once):
            asked = [job.suffixes[start : start + at_once] for job in jobs]
            for row, found in zip(answers, self._decode(cache, prefix, asked), strict=True):
                row += found
            cache.crop(prefix - cache.get_seq_length())
        return answers

    def _prefill(self, jobs: Sequence[_Job], pixels: dict[int, _Pixels]) -> Any:
        """Run the beginnings of several pictures; the filled cache, one row per job."""
        looks = [pixels[job.image] for job in jobs]
        patches = max(look.values.shape[1] for look in looks)
        values = torch.cat(
            [
                torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 0, 0, patches - x.shape[1]))
                for x in (look.values for look in looks)
            ]
        )
        ids = torch.tensor([job.prefix for job in jobs], device=self.model.device)
        output = self.model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=values.to(self.model.device, self.model.dtype),
            image_sizes=torch.cat([look.size for look in looks]).to(self.model.device),
            past_key_values=DynamicCache(),  # keeps everything: `_Tree` knows of a window
            use_cache=True,
            read=ids[:, :0],
        )
        return output.past_key_values

    def _decode(
        self, cache: Any, prefix: int, suffixes: Sequence[Sequence[tuple[int, ...]]]
    ) -> list[list[Answer]]:
        """Greedy answers to the questions of every picture, behind `prefix` cached tokens of each."""
        device = self.model.device
        tree = _Tree(prefix, len(suffixes), getattr(self.model.config.text_config, "sliding_window", None))
        for row, questions in enumerate(suffixes):
            for question, suffix in enumerate(questions):
                tree.add(row, question, suffix)
        places = [(row, question) for row, asked in enumerate(suffixes) for question in range(len(asked))]
        of_rows, of_questions = torch.tensor(places).T.to(device)
        produced: list[list[int]] = [[] for _ in places]
        still_open = set(range(len(places)))
        first: np.ndarray | None = None
        for step in range(self.max_new_tokens):
            ids, positions, mask, ends = (part.to(device) for part in tree.take())
            read = ends if ends.shape[1] < ids.shape[1] else None
            hidden = self.model.model(
                input_ids=ids,
                attention_mask=_additive(mask, self.model.dtype),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                read=read,
            ).last_hidden_state
            done = read is not None and hidden.shape[1] == read.shape[1]
            columns = of_questions if done else ends[of_rows, of_questions]
            logits = self.model.lm_head(hidden[of_rows, columns]).float()
            if first is None:
                first = self._yes_no(logits)
            tokens = logits.argmax(-1).tolist()
            for k in sorted(still_open):
                if tokens[k] in self._eos:
                    still_open.discard(k)
                else:
                    produced[k].append(tokens[k])
            if not still_open or step + 1 == self.max_new_tokens:
                break
            for (row, question), token in zip(places, tokens, strict=True):
                tree.add(row, question, (token,))
        assert first is not None
        answers: list[list[Answer]] = [[] for _ in suffixes]
        for (row, _), answer_ids, (yes, no) in zip(places, produced, first.tolist(), strict=True):
            text = self.processor.tokenizer.decode(answer_ids, skip_special_tokens=True).strip()
            answers[row].append(Answer(text, len(answer_ids), yes, no))
        return answers

    def _yes_no(self, logits: torch.Tensor) -> np.ndarray:
        probabilities = logits.softmax(-1)
        columns = [probabilities[:, ids].sum(-1) for ids in (self._yes, self._no)]
        return torch.stack(columns, 1).cpu().numpy()


class _Tree:
    """Questions about several pictures as one row of tokens each, behind the pictures' beginnings.

    prefix  Tokens of a beginning; rows: pictures. window: how far back a token sees, None without a limit.
    """

    _SHARED, _NOBODY = -1, -2

    def __init__(self, prefix: int, rows: int, window: int | None) -> None:
        self._window = window
        # Of all tokens so far, (rows, S): whose they are, and at which place of their question's prompt.
        self._owners = torch.full((rows, prefix), self._SHARED)
        self._positions = torch.arange(prefix).repeat(rows, 1)
        self._lengths: dict[tuple[int, int], int] = {}
        self._new: list[list[tuple[int, int, int]]] = [[] for _ in range(rows)]
        self._prefix = prefix

    def add(self, row: int, question: int, ids: Sequence[int]) -> None:
        """Appends tokens to a question."""
        length = self._lengths.get((row, question), self._prefix)
        self._new[row] += [(token, question, length + k) for k, token in enumerate(ids)]
        self._lengths[row, question] = length + len(ids)

    def take(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What was added since the last time: ids and positions (rows, T), a mask (rows, 1, T, S) of what
        each token sees, itself and those taken before included, and the columns (rows, Q) in which the
        questions end, 0 behind a row's last question.
        """
        width, padding = max(map(len, self._new)), (0, self._NOBODY, self._prefix)
        questions = 1 + max(question for _, question in self._lengths)
        ends = [[0] * questions for _ in self._new]
        for row, tokens in zip(ends, self._new, strict=True):
            for column, (_, question, _) in enumerate(tokens):
                row[question] = column
        added = torch.tensor([[*row, *[padding] * (width - len(row))] for row in self._new])
        ids, owners, positions = added.unbind(-1)
        self._new = [[] for _ in self._new]
        self._owners = torch.cat([self._owners, owners], 1)
        self._positions = torch.cat([self._positions, positions], 1)
        whose, place = self._owners[:, None], self._positions[:, None]
        mask = (whose == self._SHARED) | ((whose == owners[..., None]) & (place <= positions[..., None]))
        if self._window is not None:
            mask &= place > positions[..., None] - self._window
        return ids, positions, mask[:, None], torch.tensor(ends)


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of bools as what is added to scores: 0 where it says True."""
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def _skip_unread_layers(model: Any) -> None:
    """Lets the vision tower's layers behind the last one that is read do nothing: LLaVA reads the last but
    one, and transformers works out all."""
    tower, read = model.model.vision_tower, model.config.vision_feature_layer
    count = int(model.config.vision_config.num_hidden_layers)
    lists = [one for one in tower.modules() if isinstance(one, torch.nn.ModuleList) and len(one) == count]
    if len(lists) == 1:
        # Of the count + 1 states the first is what goes into the first layer.
        places = [place % (count + 1) for place in (read if isinstance(read, list) else [read])]
        for layer in lists[0][max(places) :]:
            layer.forward = _unchanged


def _look_at_equal_tiles_once(tower: Any) -> None:
    """Of a tile that is equal to the one before it, as the only tile of a small picture is to the whole, the
    tower works out nothing."""
    looked = tower.forward

    def once(pixel_values: torch.Tensor, **kwargs: Any) -> Any:
        """(N, 3, H, W) pixels; the states of all N."""
        new = torch.cat(
            [
                torch.ones(1, dtype=torch.bool, device=pixel_values.device),
                (pixel_values[1:] != pixel_values[:-1]).flatten(1).any(1),
            ]
        )
        if bool(new.all()):
            return looked(pixel_values, **kwargs)
        seen, place = looked(pixel_values[new], **kwargs), new.cumsum(0) - 1
        seen.last_hidden_state = seen.last_hidden_state[place]
        # The library leaves None in the place of states that nobody reads.
        seen.hidden_states = tuple(None if one is None else one[place] for one in seen.hidden_states)
        return seen

    tower.forward = once


def _unchanged(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return hidden_states


def _after(row: Sequence[int], token: int) -> int:
    """Index behind the last `token` of the row."""
    return len(row) - list(reversed(row)).index(token)


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Length of the longest common beginning."""
    count = 0
    for column in zip(*rows, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def load(
    path_or_id: str,
    *,
    revision: str | None,
    device: str,
    dtype: str,
    template: str = "llava-mistral",
    quantization: str = "none",
    batch_size: int = 8,
) -> LlavaNextJudge:
    """Load a LLaVA-NeXT checkpoint with a Llama or Mistral text model from a folder or the hub.

    quantization: "none", or "bnb-fp4", the paper's judge: 4-bit weights (fp4, no double quantisation) by
    bitsandbytes with the arithmetic in `dtype` (the paper: float16).
    """
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration

    choose("quantization", quantization, ("none", "bnb-fp4"))
    choose("prompt template", template, TEMPLATES)
    options = _four_bit(device, dtype) if quantization == "bnb-fp4" else {}
    model, source = load_model(
        LlavaNextForConditionalGeneration,
        path_or_id,
        model_type="llava_next",
        revision=revision,
        device=device,
        dtype=dtype,
        **options,
    )
    if quantization == "none" and getattr(model.config, "quantization_config", None):
        quantization = "checkpoint"
    processor = from_pretrained(AutoProcessor, source.reference, revision=source.revision)
    return LlavaNextJudge(
        model,
        processor,
        source,
        template=template,
        quantization=quantization,
        batch_size=batch_size,
    )


def _four_bit(device: str, dtype: str) -> dict[str, Any]:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MetricError(
            "Quantization 'bnb-fp4' needs bitsandbytes: pip install 'nein[quantized]', or choose 'none'."
        )
    from transformers import BitsAndBytesConfig

    from metrics.loading import DTYPES

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4",
        bnb_4bit_compute_dtype=DTYPES[choose("dtype", dtype, DTYPES)],
    )
    return {"quantization_config": config, "device_map": {"": device}}
