"""The prompts of the released scripts of construction, from a copy of github.com/m1k2zoo/negbench @ 2ac009b.

No script is run: its syntax tree is searched for examples and for the text that a function puts together.

The scripts hand a prompt to vLLM as it is; here it is a user's turn in the model's chat template. Answers are
read as there: the first paragraph; of a sentence its first line without a label and without quotation marks.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.datasets.negbench.sentences import Negation
from nein.engine.errors import UserError
from nein.models.llm.client import NONSENSE, AnswerError, Plain

SOURCE = "github.com/m1k2zoo/negbench"
EXAMPLES, VIDEO_EXAMPLES = 3, 5  # of a negated caption and of concepts; of a paraphrase about a video


class ObjectList(Plain):
    """Objects separated by commas, as the model names them, each once."""

    names: list[str]

    @classmethod
    def read(cls, text: str) -> ObjectList:
        names = [name.strip() for name in text.replace("'", "").replace('"', "").split(",")]
        if not any(names):
            raise AnswerError(NONSENSE, "no object in the answer")
        return cls(names=list(dict.fromkeys(name for name in names if name)))


class VideoConcepts(Plain):
    """Two concepts that a video shows and one that it does not, each in a line with its label."""

    present: list[str]
    absent: list[str]

    @classmethod
    def read(cls, text: str) -> VideoConcepts:
        said: dict[str, str] = {}
        for line in text.splitlines():
            label, colon, name = line.strip().partition(":")
            if colon and name.strip():
                said[label.lower()] = name.strip()
        if not {"positive1", "positive2", "negative"} <= said.keys():
            raise AnswerError(NONSENSE, f"no three concepts in the answer {text[:80]!r}")
        return cls(present=[said["positive1"], said["positive2"]], absent=[said["negative"]])


class Line(Plain):
    """A sentence: the first line, without its label and without quotation marks around it."""

    sentence: str

    @classmethod
    def read(cls, text: str) -> Line:
        said = text.partition("\n")[0].strip()
        for label in ("Rephrased Caption:", "Negative Caption:"):
            said = said.removeprefix(label).strip()
        while said.startswith('"') and said.endswith('"'):
            said = said[1:-1]
        if not said.strip():
            raise AnswerError(NONSENSE, "the answer is empty")
        return cls(sentence=said)


class Verdict(Plain):
    """Yes or no, whatever follows."""

    END = "\n"
    valid: bool

    @classmethod
    def read(cls, text: str) -> Verdict:
        for word, valid in (("yes", True), ("no", False)):
            if text.lower().startswith(word):
                return cls(valid=valid)
        raise AnswerError(NONSENSE, f"neither yes nor no in the answer {text[:80]!r}")


class Script:
    """The texts in a Python file. Raises UserError for a file that is not there or not as released."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            data = path.read_bytes()
            self._tree = ast.parse(data)
        except OSError as error:
            raise UserError(
                f"'{path}' cannot be read ({error.strerror or error}); --prompts is a copy of {SOURCE}."
            ) from None
        except (SyntaxError, ValueError) as error:
            raise UserError(f"'{path}' is not a Python file ({error}); see --prompts.") from None
        self.sha256 = hashlib.sha256(data).hexdigest()

    def examples(self, name: str) -> list[str]:
        """A list of texts at the top of the file."""
        value = self._only(name, self._tree.body)
        if isinstance(value, ast.List):
            texts = [one.value for one in value.elts if isinstance(one, ast.Constant)]
            if len(texts) == len(value.elts) and all(isinstance(text, str) for text in texts):
                return [str(text) for text in texts]
        raise self._unlike(f"'{name}' is not a list of texts")

    def text(self, variable: str, function: str | None = None, place: int = 0, **gaps: str) -> str:
        """The text assigned to `variable` at the top of the file or in `function`, its gaps filled in. place:
        which one, where a function assigns several; gaps: by the first name that stands in the gap."""
        body: Sequence[ast.AST] = self._tree.body
        if function is not None:
            named = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == function]
            body = [inner for node in named for inner in ast.walk(node)]
        value = self._only(variable, body, place)
        pieces = []
        for piece in value.values if isinstance(value, ast.JoinedStr) else [value]:
            names = [node.id for node in ast.walk(piece) if isinstance(node, ast.Name)]
            if isinstance(piece, ast.Constant) and isinstance(piece.value, str):
                pieces.append(piece.value)
            elif isinstance(piece, ast.FormattedValue) and names and names[0] in gaps:
                pieces.append(gaps[names[0]])
            else:
                raise self._unlike(f"'{variable}' has a gap that is not known")
        return "".join(pieces)

    def _unlike(self, why: str) -> UserError:
        return UserError(f"'{self.path}': {why}; --prompts needs the files of {SOURCE}.")

    def _only(self, name: str, body: Sequence[ast.AST], place: int = 0) -> ast.expr:
        values = [
            node.value
            for node in body
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ]
        values.sort(key=lambda value: value.lineno)
        if len(values) <= place:
            raise self._unlike(f"it has no '{name}'")
        return values[place]


class Published:
    """The prompts of a form ("evaluation" or "training"). Raises UserError where a file is not as released.

    thing  "image" or "video".
    """

    def __init__(self, folder: Path, form: str, thing: str) -> None:
        root = next((f for f in (folder, folder / "synthetic_datasets") if (f / "evaluation").is_dir()), None)
        if root is None:
            raise UserError(
                f"'{folder}' has no folder synthetic_datasets/evaluation; --prompts is a copy of {SOURCE}."
            )
        self._evaluation, self._training = root / "evaluation", root / "finetuning"
        self._form = self._evaluation if form == "evaluation" else self._training
        self._thing = thing
        self._objects = self._form / "process_caption_objects.py"
        self._videos = self._evaluation / "process_video_tasks.py"
        self._scripts: dict[Path, Script] = {}
        rng = random.Random(0)  # every prompt is put together once
        if thing == "video":
            self.concepts(["a"], rng)
        else:
            self.present("a")
            self.absent("a", ["b"])
        for option in (False, True):
            self.rephrase("a", option, True, rng)
        self.negate(Negation("a", "b", True), rng)
        self.valid(["a"])

    @property
    def sha256(self) -> str:
        """Over the files that were read, in the order of their names."""
        scripts = sorted(self._scripts.values(), key=lambda script: str(script.path))
        return hashlib.sha256("".join(script.sha256 for script in scripts).encode()).hexdigest()

    def present(self, caption: str) -> str:
        """Asks for the objects of a caption: ObjectList."""
        script = self._script(self._objects)
        return script.text("prompt_template", "generate_extraction_prompt", caption=caption)

    def absent(self, caption: str, present: Sequence[str]) -> str:
        """Asks for five objects that go with a caption and are not in it: ObjectList."""
        gaps: dict[str, Any] = {"caption": caption, "relevant_objects": str([*present])}
        return self._script(self._objects).text("prompt_template", "generate_negative_objects_prompt", **gaps)

    def concepts(self, captions: Sequence[str], rng: random.Random) -> str:
        """Asks for two concepts of a video and one that it lacks: VideoConcepts."""
        examples = _some(self._script(self._videos).examples("concepts_examples_list"), EXAMPLES, rng)
        gaps: dict[str, Any] = {"original_captions": str([*captions]), "examples": examples}
        return self._script(self._videos).text("prompt_template", "generate_prompt_concepts", **gaps)

    def valid(self, names: Sequence[str]) -> str:
        """Asks whether this is a list of objects and nothing else: Verdict."""
        script = self._script(self._training / "validate_object_lists.py")
        examples = script.text("examples", "process_validation_task")
        gaps: dict[str, Any] = {"objects_value": str([*names]), "examples": examples}
        return script.text("prompt_template", "generate_prompt", **gaps)

    def negate(self, negation: Negation, rng: random.Random) -> str:
        """Asks for a caption that also denies an object, in the order of the negation: Line."""
        script = self._script(self._training / "generate_negative_captions.py")
        first = "negation" if negation.before else "affirmation"
        examples = _some(script.examples(f"{first}_first_examples_list"), EXAMPLES, rng)
        gaps: dict[str, Any] = {"affirmative_caption": negation.caption, "negative_objects": negation.absent}
        return script.text("prompt_template", "generate_prompt", examples=examples, **gaps)

    def rephrase(self, text: str, option: bool, keep_order: bool, rng: random.Random) -> str:
        """Asks for a caption or an option in other words: Line. keep_order: of captions, and of options about
        videos, what comes first, affirmation or negation, has to come first still."""
        task = "mcq" if option else "retrieval"
        if self._thing == "video":
            listed = self._script(self._videos).examples(f"paraphrasing_{task}_examples_list")
            script, function = self._script(self._videos), "generate_prompt_paraphrasing"
            examples = _some(listed, VIDEO_EXAMPLES, rng)
        else:
            script, function = self._script(self._form / "paraphrase_captions.py"), "generate_prompt"
            examples, keep_order = script.text(f"{task}_examples"), keep_order and not option
        guidelines = script.text("guidelines", function, place=int(keep_order))
        gaps: dict[str, Any] = {"examples": examples, "guidelines": guidelines}
        return script.text("prompt_template", function, caption=text, original_caption=text, **gaps)

    def _script(self, path: Path) -> Script:
        if path not in self._scripts:
            self._scripts[path] = Script(path)
        return self._scripts[path]


def _some(examples: Sequence[str], count: int, rng: random.Random) -> str:
    return "\n\n".join(rng.sample(examples, min(count, len(examples))))
