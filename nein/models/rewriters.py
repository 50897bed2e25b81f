"""Rewriters, which reword an instruction before an editor gets it: `nein rewriters` measures their texts,
`nein eval --mend rewrite:REWRITER` puts one before an editor. Forms of REWRITER:

rule             `nein.wording.denials`: "The image has no X." -> "Remove the X."; plain `--mend rewrite`
llm:MODEL        a language model with our prompt
flux2:MODEL      MODEL with the image and the installed diffusers' prompt for FLUX.2 edits; also flux3:MODEL
FILE.py:FUNCTION a function (instruction) -> text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from nein.loading.digests import Json
from nein.loading.errors import UserError, reason, unknown
from nein.loading.references import is_served, load_attribute, parse_reference
from nein.loading.service import NoAnswer
from nein.metrics.chat import Chat, Message, Sampling
from nein.metrics.chat.asking import open_chat
from nein.models import llm
from nein.models.cached import Services
from nein.wording import denials
from nein.wording.families import write_removal

VENDORS = ("flux2", "flux3")  # prefixes of rewriters with a prompt of diffusers
FORMS = ("rule", "llm:MODEL", "flux2:MODEL", "flux3:MODEL", "FILE.py:FUNCTION")
PROMPT = (
    "A person tells a program what a picture should be like. The program understands only plain commands, "
    "and no negation. Say the command that brings the picture there.\n"
    '- Where the sentence says that something is absent, the command removes it: "Remove the X.", or '
    '"Remove the X and the Y." X is the thing in the person\'s words, without further words.\n'
    "- Where the sentence affirms that something is there, in however many negations, the command is empty.\n"
    "- Any other sentence is the command as it is.\n\n"
    "Sentence: {sentence}"
)
MAX_TOKENS = 512  # of a vendor's answer: FLUX.2 asks for 80 words, FLUX.3 for a paragraph


class Command(BaseModel):
    """The answer of a language model that rewrites: the command, "" where the picture stays as it is."""

    model_config = ConfigDict(extra="forbid")  # these words, too, are sent: they are in the schema
    command: str


class Rewording(NamedTuple):
    """The new text, or None and an error. A text of "" means that the image is to stay unchanged."""

    text: str | None
    error: str = ""
    again: bool = False  # whether a retry may succeed


class Rewriter:
    """Base class of rewriters."""

    chat: Any = None  # the model that it asks, or a client of one; None: it asks none

    def usage(self) -> Json:
        return self.chat.usage() if self.chat else {}

    def stop(self) -> None:
        if self.chat:
            self.chat.stop()

    def describe(self) -> Json:
        raise NotImplementedError

    def rewrite(self, instructions: Sequence[str], images: Sequence[np.ndarray]) -> list[Rewording]:
        """One rewording per instruction, in order. images: (H, W, 3) uint8 RGB, one per instruction."""
        raise NotImplementedError


class RuleRewriter(Rewriter):
    """Our rule: "Remove the X." for what a sentence denies, "" for a denied denial, else the sentence."""

    def describe(self) -> Json:
        return {"reads": "nein.wording.denials"}

    def rewrite(self, instructions: Sequence[str], images: Sequence[np.ndarray]) -> list[Rewording]:
        rewordings = []
        for instruction, reading in zip(instructions, denials.read(instructions), strict=True):
            if reading.absent:
                rewordings.append(Rewording(write_removal(" and the ".join(reading.absent))))
            else:
                rewordings.append(Rewording("" if reading.doubled else instruction))
        return rewordings


class FunctionRewriter(Rewriter):
    """A function of the user: (instruction) -> text."""

    def __init__(self, reference: str) -> None:
        self.reference, self.function = reference, load_attribute(reference)

    def describe(self) -> Json:
        return {"function": self.reference}

    def rewrite(self, instructions: Sequence[str], images: Sequence[np.ndarray]) -> list[Rewording]:
        rewordings = []
        for instruction in instructions:
            try:
                rewordings.append(Rewording(str(self.function(instruction))))
            except Exception as error:  # noqa: BLE001 - the user's code failed: the sample is unscored
                rewordings.append(Rewording(None, reason(error), again=True))
        return rewordings


class PromptRewriter(Rewriter):
    """A language model with our prompt; its answers are checked, cached and counted."""

    def __init__(self, client: llm.Client) -> None:
        self.chat = client

    def describe(self) -> Json:
        return {"prompt": PROMPT, **self.chat.describe()}

    def rewrite(self, instructions: Sequence[str], images: Sequence[np.ndarray]) -> list[Rewording]:
        requests = [llm.Request(PROMPT.format(sentence=instruction)) for instruction in instructions]
        rewordings = []
        for outcome in self.chat.complete(requests, Command):
            if outcome.value:
                rewordings.append(Rewording(outcome.value.command.strip()))
            else:
                error = f"{outcome.failure}, {outcome.reason}"
                rewordings.append(Rewording(None, error, again=outcome.failure in llm.SILENT))
        return rewordings


class VendorRewriter(Rewriter):
    """A chat with the prompt of a vendor, all in one turn: the system prompt, the image, the request."""

    def __init__(self, chat: Chat, system: str, request: str) -> None:
        self.chat, self.system, self.request = chat, system, request

    def describe(self) -> Json:
        return {"system": self.system, "request": self.request, **self.chat.describe()}

    def rewrite(self, instructions: Sequence[str], images: Sequence[np.ndarray]) -> list[Rewording]:
        requests = [self.request.format(instruction=instruction) for instruction in instructions]
        messages = [Message((self.system, image, text)) for image, text in zip(images, requests, strict=True)]
        rewordings = []
        for completion in self.chat.complete(messages, Sampling(MAX_TOKENS)):
            if completion.error is None and completion.text:
                rewordings.append(Rewording(completion.text))
                continue
            error = completion.error or ValueError("the text is empty")  # diffusers raises for it, too
            again = not isinstance(error, NoAnswer) or error.kind in llm.SILENT
            rewordings.append(Rewording(None, reason(error), again))
        return rewordings


def find_prompt(vendor: str) -> tuple[str, str]:
    """(system prompt, template of the request) for edits, from the installed diffusers. Raises UserError."""
    try:
        if vendor == "flux2":
            from diffusers.pipelines.flux2 import system_messages

            return system_messages.SYSTEM_MESSAGE_UPSAMPLING_I2I, "{instruction}"
        from diffusers.modular_pipelines.flux3 import prompt_upsampler

        template = prompt_upsampler.I2I_SCAFFOLD[False]  # True: the user fixed boxes
        return prompt_upsampler.SYSTEM_PROMPTS["i2i"], template
    except (ImportError, AttributeError, KeyError) as error:
        raise UserError(f"The installed diffusers has no prompt of {vendor} ({error}); update it.") from None


def find_source(reference: str) -> str:
    """The model behind "llm:MODEL" or a vendor's rewriter; a function's own reference; "" for the rule."""
    kind, _, model = reference.partition(":")
    if kind in ("llm", *VENDORS):
        return model
    return "" if reference == "rule" else reference


def check(reference: str) -> None:
    """Check a reference without loading a model. Raises UserError or MetricError."""
    source = find_source(reference)
    if source and source != reference:  # a model
        llm.check(source)
    elif source and parse_reference(source).kind == "attribute":
        load_attribute(source)
    elif reference != "rule":
        raise unknown("rewriter", reference, FORMS)


def load(reference: str, *, services: Services | None, device: str, dtype: Any = "float32") -> Rewriter:
    """Load a rewriter that `check` accepts. services: for a served model. Raises UserError, MetricError."""
    if reference == "rule":
        return RuleRewriter()
    source = find_source(reference)
    if source == reference:
        return FunctionRewriter(reference)
    kind = reference.partition(":")[0]
    if kind == "llm":
        settings = llm.LlmOptions(model=source, dtype=dtype)
        return PromptRewriter(llm.load(settings, services=services, device=device))
    options = services.options if services is not None and is_served(source) else {}
    system, request = find_prompt(kind)
    chat = open_chat(source, device=device, dtype=dtype, **options)
    rewriter = VendorRewriter(chat, system, request)
    return services.keep(rewriter) if services is not None else rewriter
