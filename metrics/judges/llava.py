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
import itertools
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
        self._likely = self._answers_of_one_token(("Yes", "No"))
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

    def _answers_of_one_token(self, words: Sequence[str]) -> list[int]:
        """The token of each word that a prompt can go on with in one, with a blank before it or without."""
        prompt = TEMPLATES[self.template].ask_presence("car")
        count = len(self._encoded(prompt))
        found = []
        for word in words:
            ends = [self._encoded(prompt + blank + word)[count:] for blank in (" ", "")]
            found += [end[0] for end in ends if len(end) == 1][:1]
        return found

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
        width = len(self._likely) + max(len(suffix) for job in jobs for suffix in job.suffixes)
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
        """Greedy answers to the questions of every picture, behind `prefix` cached tokens of each.

        With a question goes what is likely to be its answer, "Yes" and "No", each beside the other: where one
        is the answer indeed, what follows it, the end most often, is known without another pass. Where none
        is, the answer goes on token by token as always.
        """
        tree = _Tree(prefix, len(suffixes), getattr(self.model.config.text_config, "sliding_window", None))
        strands, guesses = [], {}
        for row, questions in enumerate(suffixes):
            for suffix in questions:
                strand = tree.begin(row, suffix)
                strands.append(strand)
                for token in self._likely if self.max_new_tokens > 1 else ():
                    guesses[strand, token] = tree.begin(row, (token,), behind=strand)
        asked = [*strands, *guesses.values()]
        logits = self._continued(tree, cache, asked)
        first = self._yes_no(logits[: len(strands)])
        best = dict(zip(asked, logits.argmax(-1).tolist(), strict=True))
        produced: list[list[int]] = [[] for _ in strands]

        def goes_on(answer: int, token: int) -> bool:
            if token not in self._eos:
                produced[answer].append(token)
            return token not in self._eos and len(produced[answer]) < self.max_new_tokens

        waiting = []
        for answer, strand in enumerate(strands):
            token = best[strand]
            unfinished, guess = goes_on(answer, token), guesses.get((strand, token))
            if unfinished and guess is not None:
                strand, token = guess, best[guess]
                unfinished = goes_on(answer, token)
            if unfinished:
                waiting.append((answer, strand, token))
        while waiting:
            for _, strand, token in waiting:
                tree.add(strand, (token,))
            tokens = self._continued(tree, cache, [strand for _, strand, _ in waiting]).argmax(-1).tolist()
            waiting = [
                (answer, strand, token)
                for (answer, strand, _), token in zip(waiting, tokens, strict=True)
                if goes_on(answer, token)
            ]
        found = (
            Answer(self.processor.tokenizer.decode(ids, skip_special_tokens=True).strip(), len(ids), yes, no)
            for ids, (yes, no) in zip(produced, first.tolist(), strict=True)
        )
        return [list(itertools.islice(found, len(questions))) for questions in suffixes]

    def _continued(self, tree: _Tree, cache: Any, strands: Sequence[int]) -> torch.Tensor:
        """(strands, V) float32 logits of what follows each; all that was added to the tree is run."""
        device = self.model.device
        ids, positions, mask, columns, places = (part.to(device) for part in tree.take(strands))
        read = columns if columns.shape[1] < ids.shape[1] else None
        hidden = self.model.model(
            input_ids=ids,
            attention_mask=_additive(mask, self.model.dtype),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            read=read,
        ).last_hidden_state
        rows, order = places
        # Of a language model that knows nothing of `read` there are all tokens.
        done = read is not None and hidden.shape[1] == read.shape[1]
        return self.model.lm_head(hidden[rows, order if done else columns[rows, order]]).float()

    def _yes_no(self, logits: torch.Tensor) -> np.ndarray:
        probabilities = logits.softmax(-1)
        columns = [probabilities[:, ids].sum(-1) for ids in (self._yes, self._no)]
        return torch.stack(columns, 1).cpu().numpy()


class _Tree:
    """What follows the beginnings of several pictures, as one row of tokens each: strands that see the
    beginning, themselves, and the strand behind which they stand, if that is not the beginning.

    prefix  Tokens of a beginning; rows: pictures. window: how far back a token sees, None without a limit.
    """

    _BEGINNING, _NOTHING = 0, 1

    def __init__(self, prefix: int, rows: int, window: int | None) -> None:
        self._window = window
        # Of a strand: its row, the strand before it, and its length from the first token of the prompt on.
        self._rows, self._before, self._lengths = [-1, -1], [0, 0], [prefix, prefix]
        # Of all tokens so far, (rows, S): their strand, and their place in the prompt.
        self._strands = torch.full((rows, prefix), self._BEGINNING)
        self._positions = torch.arange(prefix).repeat(rows, 1)
        self._new: list[list[tuple[int, int, int, int]]] = [[] for _ in range(rows)]
        self._columns: dict[int, int] = {}

    def begin(self, row: int, ids: Sequence[int], behind: int = _BEGINNING) -> int:
        """A new strand of these tokens; its number."""
        strand = len(self._rows)
        self._rows.append(row)
        self._before.append(behind)
        self._lengths.append(self._lengths[behind])
        self.add(strand, ids)
        return strand

    def add(self, strand: int, ids: Sequence[int]) -> None:
        """Appends tokens to a strand."""
        new, before, start = self._new[self._rows[strand]], self._before[strand], self._lengths[strand]
        new += [(token, strand, before, place) for place, token in enumerate(ids, start)]
        self._lengths[strand] += len(ids)
        self._columns[strand] = len(new) - 1

    def take(self, strands: Sequence[int]) -> tuple[torch.Tensor, ...]:
        """What was added since the last time: ids and positions (rows, T) and a mask (rows, 1, T, S) of what
        each token sees of those taken so far, itself included. Of `strands`, to which something was added,
        the columns (rows, K) in which they end, and where each stands in these: (2, strands).
        """
        width = max(map(len, self._new))
        padding = (0, self._NOTHING, self._BEGINNING, self._lengths[self._BEGINNING])
        added = torch.tensor([[*row, *[padding] * (width - len(row))] for row in self._new])
        ids, owners, before, positions = added.unbind(-1)
        columns: list[list[int]] = [[] for _ in self._new]
        places = []
        for strand in strands:
            row = self._rows[strand]
            places.append((row, len(columns[row])))
            columns[row].append(self._columns[strand])
        most = max(map(len, columns))
        self._new = [[] for _ in self._new]
        self._strands = torch.cat([self._strands, owners], 1)
        self._positions = torch.cat([self._positions, positions], 1)
        whose, place, own = self._strands[:, None], self._positions[:, None], positions[..., None]
        mask = (whose == owners[..., None]) | (whose == before[..., None]) | (whose == self._BEGINNING)
        mask &= place <= own
        if self._window is not None:
            mask &= place > own - self._window
        padded = torch.tensor([[*row, *[0] * (most - len(row))] for row in columns])
        return ids, positions, mask[:, None], padded, torch.tensor(places).T


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
