"""A chat model as a VQA judge: one user turn, image and question, answered yes or no."""

from __future__ import annotations

from nein.metrics.base import Images, Texts, without_thoughts
from nein.metrics.chat import YES_NO, Completion, Message, Sampling
from nein.metrics.chat.asking import ChatModel, ask
from nein.metrics.judges.base import Answer, check_batch


class ChatJudge(ChatModel):
    """P(yes) and P(no) are of the first token, of a served model lower bounds; a question that stays without
    an answer raises for the whole call."""

    kind = "vqa"
    template = "question"

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]`: plain questions about `images[i]`, (H, W, 3) uint8. Raises NoAnswer, or what the
        model raised."""
        check_batch(images, questions, "questions")
        rows = [
            [Message((image, text)) for text in row] for image, row in zip(images, questions, strict=True)
        ]
        found = ask(self.chat, rows, Sampling(self.max_new_tokens, top=YES_NO))
        return [[_answer(completion) for completion in row] for row in found]


def _answer(completion: Completion) -> Answer:
    if completion.error is not None:
        raise completion.error
    if (text := without_thoughts(completion.text)) is None:
        raise ValueError("the limit of tokens ended within the model's thoughts")
    p = completion.probabilities or {}
    return Answer(text.strip(), completion.tokens or 0, p.get("yes"), p.get("no"), completion.version)
