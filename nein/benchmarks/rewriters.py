"""What a rewriter makes of a negative instruction, by the text alone: does it still ask for the removal?

An editor may be shielded from a negation by its vendor's rewriter, which words the request anew before the
model that paints. Here the rewriter is asked alone, about the instructions of NeIn.

rule             `nein.wording.denials`, as `nein eval --mend rewrite`
llm:MODEL        our prompt, as `nein eval --mend rewrite:llm:MODEL`
flux2:MODEL      the prompt for edits of FLUX.2 in the installed diffusers, asked of MODEL with the image
flux3:MODEL      the same of FLUX.3
FILE.py:FUNCTION a function (instruction) -> text
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from nein.benchmarks.rewriters_config import RewritersConfig
from nein.benchmarks.runner import Benchmark, Run, machine_identity, select_rows
from nein.datasets import nein as data
from nein.datasets.nein import Sample
from nein.engine import images
from nein.engine.folder import Blocks, Folder
from nein.engine.stages import Model, Stage
from nein.loading.digests import Json
from nein.loading.errors import UserError, reason, unknown
from nein.loading.references import is_served, load_attribute
from nein.metrics.chat import Chat, Message, Sampling
from nein.metrics.chat.asking import open_chat
from nein.models import llm
from nein.models.cached import CachedChat, Services
from nein.models.references import slug, split_label
from nein.models.remedies import editors as remedies
from nein.reporting.page import Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import COUNTS, Column, Row, Table
from nein.wording import denials
from nein.wording.families import find_named, plural, removal

#: What becomes of the thing that the instruction denies.
OUTCOMES = {
    "removed": "the text asks for its removal",
    "denied": "the text still denies it",
    "dropped": "the text does not name it",
    "affirmed": "the text names it as something that is there",
}
REMOVING = r"\b(?:remov|eras|delet|eliminat|clear|strip|take out|take away|get rid of)\w*\b"
FORMS = ("rule", "llm:MODEL", "flux2:MODEL", "flux3:MODEL", "FILE.py:FUNCTION")
#: Tokens of an answer: FLUX.2 asks for 80 words, FLUX.3 for a paragraph.
MAX_TOKENS = 512


def outcome(text: str, thing: str) -> tuple[str | None, str]:
    """(key of OUTCOMES, "") for a new instruction about `thing`; (None, why) where the rule cannot tell."""
    name = rf"(?<![\w-])(?:{re.escape(thing)}|{re.escape(plural(thing))})(?![\w-])"
    if not re.search(name, text, re.IGNORECASE):
        return "dropped", ""
    for sentence in re.split(r"[.;!]\s*", text):  # "Remove the cup and the dog; keep the table."
        if re.search(rf"{REMOVING}(?:(?!\b(?:keep|leave|preserve)\b).)*?{name}", sentence, re.IGNORECASE):
            return "removed", ""
    [reading] = denials.read([text])
    for found, phrases in (("denied", reading.absent), ("affirmed", reading.present)):
        if any(re.search(name, phrase, re.IGNORECASE) for phrase in phrases):
            return found, ""
    return None, f"the rule reads no phrase with '{thing}'"


def invented(text: str, sample: Sample, objects: Sequence[str]) -> list[str]:
    """Those of `objects` that the text names, and neither instruction nor caption or truth of its image."""
    known = {sample.object, *(thing.name for thing in sample.things)}
    known |= {*find_named([sample.negative, sample.caption], objects)}
    return [noun for noun in find_named([text], objects) if noun not in known]


# --- rewriters ------------------------------------------------------------------------------------------


class Rewriter:
    """Instructions -> texts. chat: the model that is asked, if it is one."""

    chat: Any = None

    def describe(self) -> Json:
        return self.chat.describe() if self.chat else {"rewriter": type(self).__name__}

    def usage(self) -> Json:
        return self.chat.usage() if self.chat else {}

    def rewrite(self, samples: Sequence[Sample]) -> list[str | Exception]:
        """A text per sample, or why there is none."""
        raise NotImplementedError


class ByRule(Rewriter):
    def rewrite(self, samples: Sequence[Sample]) -> list[str | Exception]:
        readings = denials.read([sample.negative for sample in samples])
        return [
            removal(" and the ".join(reading.absent)) if reading.absent else sample.negative
            for sample, reading in zip(samples, readings, strict=True)
        ]


class ByFunction(Rewriter):
    """A function of the user: (instruction) -> text."""

    def __init__(self, reference: str) -> None:
        self.function = load_attribute(reference)

    def rewrite(self, samples: Sequence[Sample]) -> list[str | Exception]:
        texts: list[str | Exception] = []
        for sample in samples:
            try:
                texts.append(str(self.function(sample.negative)))
            except Exception as error:  # noqa: BLE001 - of the user's code: the sample is unscored
                texts.append(error)
        return texts


class ByPrompt(Rewriter):
    """A language model with our prompt."""

    def __init__(self, client: llm.Client) -> None:
        self.client, self.chat = client, client.chat

    def rewrite(self, samples: Sequence[Sample]) -> list[str | Exception]:
        requests = [llm.Request(remedies.PROMPT.format(sentence=sample.negative)) for sample in samples]
        answers = self.client.complete(requests, remedies.Command)
        return [UserError(one.reason) if one.value is None else one.value.command for one in answers]


class ByVendor(Rewriter):
    """A chat with the prompt of a vendor, all in one turn: the system prompt, the image, the request."""

    def __init__(self, chat: Chat, system: str, request: str) -> None:
        self.chat, self.system, self.request = chat, system, request

    def rewrite(self, samples: Sequence[Sample]) -> list[str | Exception]:
        texts: list[str | Exception] = []
        messages = []
        for sample in samples:
            request = self.request.format(instruction=sample.negative)
            try:
                messages.append(Message((self.system, images.decode(sample.sample_path), request)))
                texts.append("")
            except images.ImageError as error:  # this sample is unscored, the others are asked
                texts.append(error)
        completions = iter(self.chat.complete(messages, Sampling(MAX_TOKENS)))
        for index, text in enumerate(texts):
            if text == "":
                found = next(completions)
                texts[index] = UserError(reason(found.error)) if found.error else found.text
        return texts


def vendor_prompt(vendor: str) -> tuple[str, str]:
    """(system prompt, form of the request) of edits, from the installed diffusers. Raises UserError."""
    try:
        if vendor == "flux2":
            from diffusers.pipelines.flux2 import system_messages

            return system_messages.SYSTEM_MESSAGE_UPSAMPLING_I2I, "{instruction}"
        from diffusers.modular_pipelines.flux3 import prompt_upsampler

        return prompt_upsampler.SYSTEM_PROMPTS["i2i"], prompt_upsampler.I2I_SCAFFOLD[False]
    except (ImportError, AttributeError, KeyError) as error:
        raise UserError(f"The installed diffusers has no prompt of {vendor} ({error}); update it.") from None


def load(reference: str, *, services: Services, device: str, dtype: str) -> Rewriter:
    kind, _, model = reference.partition(":")
    if reference == "rule":
        return ByRule()
    if kind == "llm":
        options = llm.LlmOptions(model=model, dtype=dtype)  # type: ignore[arg-type]
        return ByPrompt(llm.load(options, services=services, device=device))
    if kind in ("flux2", "flux3"):
        sending = services.options if is_served(model) else {}
        chat = open_chat(model, device=device, dtype=dtype, **sending)
        if chat.concurrent and services.cache is not None:
            chat = CachedChat(chat, services.cache)
        return ByVendor(chat, *vendor_prompt(kind))
    if ":" not in reference:
        raise unknown(
            "rewriter", reference, ("rule", "llm:MODEL", "flux2:MODEL", "flux3:MODEL", "FILE.py:FUNCTION")
        )
    return ByFunction(reference)


# --- the benchmark --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewriting:
    """A line of rewritten/000/000012.jsonl."""

    id: str
    source: str
    instruction: str
    thing: str
    text: str | None = None
    error: str = ""  # why there is no text


class RewritersDir(Folder):
    row_types: ClassVar = {"rewritten": Rewriting}


@dataclass(kw_only=True)
class Rewrite(Stage):
    """Instruction -> text. The model is a `Rewriter`."""

    blocks: Blocks
    samples: Sequence[Sample]
    model: Model
    name, outputs = "rewritten", ("rewritten",)

    def read(self, number: int) -> list[Sample]:
        return [self.samples[index] for index in self.blocks.members(number)]

    def work(self, model: Any, samples: list[Sample], missing: tuple[str, ...]) -> dict[str, list[Rewriting]]:
        rows = []
        for sample, text in zip(samples, model.rewrite(samples), strict=True):
            about = sample.id, sample.source_id, sample.negative, sample.object
            failed = {"error": reason(text)} if isinstance(text, Exception) else {"text": text}
            rows.append(Rewriting(*about, **failed))
        return {"rewritten": rows}

    def is_valid(self, output: str, number: int, rows: list[Rewriting]) -> bool:
        """An instruction that failed is sent again."""
        return not any(row.error for row in rows)


SHARES = Table(
    "outcomes",
    "What becomes of the thing that the instruction denies, %",
    (Row("model", "rewriter"),),
    (Column(by="metric"), *COUNTS),
    {"task": "results"},
)


class Rewriters(Benchmark):
    name, title, config, folder = "rewriters", "Rewriters", RewritersConfig, RewritersDir
    about = "measure what rewriters make of negative instructions"
    sections = (Section("outcomes", "Rewriters", (SHARES,)),)

    def runs(self, config: RewritersConfig, device: str) -> list[Run]:
        found = data.load(config.data, split=config.split)
        services = Services.create(config, config.out_dir / "cache")
        runs = []
        for given in config.rewriter:
            name, reference = split_label(given)
            name = name or reference
            served = is_served(reference.partition(":")[2])
            made = functools.partial(load, reference, services=services, device=device, dtype=config.dtype)
            model = Model.one(reference, made, "remote" if served else "device")
            # Behind an address a block is one instruction, so that a kill loses what is on its way alone.
            blocks = Blocks.first(len(found.samples), 1 if served else config.batch_size, config.limit)
            identity = {"rewriter": reference, "data": found.records_sha256}
            identity |= machine_identity(config, device)
            stage = Rewrite(blocks=blocks, samples=found.samples, model=model)
            folder = RewritersDir(config.out_dir / slug(name.replace(":", "-")))
            runs.append(Run(folder, name, identity, [stage], {"data": found.facts(blocks)}))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        """For every sample 0 or 1 of each outcome, and whether the text names a thing that is not there."""
        stage: Any = run.stages[0]
        samples = {sample.id: sample for sample in stage.samples}
        objects = sorted({sample.object for sample in stage.samples})
        rows = []
        for row in select_rows(run.folder, "rewritten"):
            about = {"id": row.id, "source": row.source}
            found, why = (None, row.error) if row.text is None else outcome(row.text, row.thing)
            for name in OUTCOMES:
                value = None if found is None else float(found == name)
                rows.append({**about, "metric": name, "value": value, "reason": why})
            extra = None if row.text is None else float(bool(invented(row.text, samples[row.id], objects)))
            rows.append({**about, "metric": "invented", "value": extra, "reason": row.error})
        return ScoreTable.from_rows(rows)

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return table.figures(task="results")


REWRITERS = Rewriters()
