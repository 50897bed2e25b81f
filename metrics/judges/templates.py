"""The wording of the questions. A prompt is what the judge's tokenizer sees, special words included."""

from __future__ import annotations

from dataclasses import dataclass

from nein.loading.errors import choose


@dataclass(frozen=True)
class PromptTemplate:
    """How a question reaches a model.

    name      Goes into manifests.
    wrapper   The model's dialogue format, with `{question}` in it and the model's own image placeholder.
    presence  The question about one object, with `{object}`.
    caption   The question about a whole caption, with `{caption}`.
    """

    name: str
    wrapper: str
    presence: str
    caption: str

    def ask_presence(self, name: str, article: str = "none") -> str:
        """Prompt that asks whether `name` is in the picture.

        article: "none" is what the released code of NeIn asks ("contain car?"), "a_an" what its paper prints
        ("contain a car?"); the article goes by the first letter alone, as NeIn's own sentences do.
        """
        choose("article", article, ("none", "a_an"))
        if article == "a_an":
            name = f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
        return self.wrap(self.presence.replace("{object}", name))

    def ask_caption(self, caption: str) -> str:
        """Prompt that asks whether `caption` describes the picture."""
        return self.wrap(self.caption.replace("{caption}", caption))

    def wrap(self, question: str) -> str:
        """Prompt that asks any question."""
        return self.wrapper.replace("{question}", question)


_PRESENCE = "Does this image contain {object}? Answer only yes or no"
_CAPTION = 'Does the caption "{caption}" describe this image? Answer only yes or no'

#: By name. The questions are NeIn's (https://github.com/tanbuinhat/NeIn, VQA scripts); the wrapper is the
#: model's.
TEMPLATES: dict[str, PromptTemplate] = {
    row.name: row
    for row in (
        PromptTemplate("llava-mistral", "[INST] <image>\n{question} [/INST]", _PRESENCE, _CAPTION),
        PromptTemplate(
            "llava-vicuna",
            "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
            "helpful, detailed, and polite answers to the human's questions. "
            "USER: <image>\n{question} ASSISTANT:",
            _PRESENCE,
            _CAPTION,
        ),
        PromptTemplate("plain", "<image>\n{question}", _PRESENCE, _CAPTION),
        PromptTemplate("question", "{question}", _PRESENCE, _CAPTION),  # the judge adds the picture itself
    )
}


def template(name: str) -> PromptTemplate:
    """The template of that name; MetricError with the near match otherwise."""
    return TEMPLATES[choose("prompt template", name, TEMPLATES)]
