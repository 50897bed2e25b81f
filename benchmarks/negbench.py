"""NegBench: a plain loop over open_clip beside ours, on the same model, files, pictures and thread.

    python -m benchmarks.negbench [--scenes 200] [--width 192] [--layers 4] [--threads 1]

Plain, as in the released scripts: every task reads and encodes its own pictures, multiple choice once per
question, with all its options. Ours: every picture and every distinct sentence once for all tasks, features
on disk; then the same command again. Every figure must be equal. The model is a ViT of open_clip with random
weights (speed does not depend on their values); its pictures are scenes of the nano world, as files. Seconds
are of the processor, so that other work on the machine does not count; ours has the loading of the model, the
rows on disk, intervals, tables, plots and the page in it, which the plain side does not make. Arithmetic (of
encoding; with one thread) and profile are written to --out.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import torch
from PIL import Image

from benchmarks.common import limits, measure, results, setup
from benchmarks.common import report as shown
from nein.benchmarks.negbench import config, report
from nein.benchmarks.negbench import folder as run_folders
from nein.benchmarks.negbench import runs as run
from nein.datasets.negbench import drawn, official
from nein.engine.images import write_png
from nein.engine.run import Executor
from nein.metrics.dual import openclip
from nein.reporting.figures import pick

BATCH = 32


def make_model(folder: Path, width: int, layers: int) -> Path:
    """A random ViT in open_clip's layout, converted from a checkpoint file as a user would."""
    import json

    from open_clip.factory import CLIP

    shape = {
        "embed_dim": 128,
        "vision_cfg": {"image_size": 64, "layers": layers, "width": width, "head_width": 64, "patch_size": 8},
        "text_cfg": {
            "context_length": 77, "vocab_size": 49408, "width": width, "heads": width // 64, "layers": layers,
        },
    }  # fmt: skip
    torch.manual_seed(0)
    torch.save(CLIP(**shape).state_dict(), folder / "weights.pt")
    (folder / "shape.json").write_text(json.dumps(shape))
    openclip.convert(folder / "weights.pt", folder / "model", architecture=str(folder / "shape.json"))
    return folder / "model"


def write_data(folder: Path, scenes: int) -> None:
    """Drawn scenes, and files about them in the released layout."""
    for image in drawn.draw_concepts("val", scenes):
        write_png(folder / image.path, drawn.draw_image(image.path))
    task, asked = drawn.make_tasks("val", scenes)
    official.write(folder / "retrieval.csv", task.original)
    official.write(folder / "negated_retrieval.csv", task.negated)
    official.write(folder / "mcq.csv", asked.questions)


class Plain:
    """The released way: a pass per task, nothing kept."""

    def __init__(self, folder: Path) -> None:
        import open_clip

        self.model, self.transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
        self.tokenizer = open_clip.get_tokenizer("ViT-B-32")
        self.model.eval()
        self.pictures = self.sentences = 0

    @torch.inference_mode()
    def images(self, paths: list[Path]) -> torch.Tensor:
        parts = []
        for start in range(0, len(paths), BATCH):
            own = [self.transform(Image.open(path)) for path in paths[start : start + BATCH]]
            parts.append(self.model.encode_image(torch.stack(own), normalize=True))
        self.pictures += len(paths)
        return torch.cat(parts)

    @torch.inference_mode()
    def texts(self, sentences: list[str]) -> torch.Tensor:
        parts = [
            self.model.encode_text(self.tokenizer(sentences[i : i + BATCH]), normalize=True)
            for i in range(0, len(sentences), BATCH)
        ]
        self.sentences += len(sentences)
        return torch.cat(parts)

    def recall(self, folder: Path, name: str) -> dict[str, float]:
        items = official.read_retrieval(folder / name)
        images = self.images([folder / item.image for item in items])
        texts = self.texts([text for item in items for text in item.captions])
        owner = torch.tensor([i for i, item in enumerate(items) for _ in item.captions])
        top = (texts @ images.T).topk(5, 1).indices
        return {f"recall@{k}": float((top[:, :k] == owner[:, None]).any(1).float().mean()) for k in (1, 5)}

    def accuracy(self, folder: Path, name: str) -> float:
        questions = official.read_questions(folder / name)
        images = self.images([folder / question.image for question in questions])
        texts = self.texts([option.text for question in questions for option in question.options])
        scores = (texts.reshape(len(questions), -1, texts.shape[1]) * images[:, None]).sum(-1)
        right = torch.tensor([question.correct for question in questions])
        return float((scores.argmax(1) == right).float().mean())


def plain_run(plain: Plain, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind, name in (("original", "retrieval.csv"), ("negated", "negated_retrieval.csv")):
        found |= {f"{key}/{kind}": value for key, value in plain.recall(folder, name).items()}
    for name in ("mcq.csv", "mcq_rephrased.csv"):
        found[name] = plain.accuracy(folder, name)
    return found


def our_run(model: Path, folder: Path, out: Path) -> dict[str, float]:
    words = ["--data", str(folder), "--image-root", str(folder), "--model", str(model), "--out", str(out)]
    # One block after the other in this thread, where the counter and the profiler see it.
    executor = Executor("cpu", debug=True)
    run.NEGBENCH(config.EvalConfig.parse([*words, "--device", "cpu", "--batch-size", str(BATCH)]), executor)
    (evaluated,) = report.load_evaluated(run_folders.find(out))
    found: dict[str, float] = {}
    for k in (1, 5):
        for kind in ("original", "negated"):
            where = {"kind": kind, "direction": "text_to_image", "variant": "templated"}
            entry = pick(evaluated.figures, metric=f"recall@{k}", **where)
            assert entry is not None
            found[f"recall@{k}/{kind}"] = entry["value"]
    for name, variant in (("mcq.csv", "templated"), ("mcq_rephrased.csv", "rephrased")):
        entry = pick(evaluated.figures, task="mcq", variant=variant, metric="accuracy", type="all")
        assert entry is not None
        found[name] = entry["value"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--scenes", type=int, default=200, help="pictures (default 200)")
    parser.add_argument("--width", type=int, default=192, help="width of both towers (default 192)")
    parser.add_argument("--layers", type=int, default=4, help="layers of both towers (default 4)")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides (default 1)")
    results(parser, "negbench")
    options = parser.parse_args()
    setup(options.threads)
    top = limits("cpu", torch.float32)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        data = root / "data"
        write_data(data, options.scenes)
        # A second wording of the questions, as the released sets have one.
        text = (data / "mcq.csv").read_text().replace("This image features", "The picture shows")
        (data / "mcq_rephrased.csv").write_text(text)
        folder = make_model(root, options.width, options.layers)
        plain = Plain(folder)
        theirs = measure(lambda: plain_run(plain, data), "cpu")
        outs = (root / f"out{number}" for number in itertools.count())
        ours = measure(lambda: our_run(folder, data, root / "out"), "cpu",
                       warm=lambda: our_run(folder, data, next(outs)), profile=True)  # fmt: skip
        again = measure(lambda: our_run(folder, data, root / "out"), "cpu", profile=True)
    for key, value in theirs.result.items():
        assert abs(value - ours.result[key]) < 1e-6, (key, value, ours.result[key])
    assert again.result == ours.result
    figures = ", ".join(f"{key} {100 * value:.1f} %" for key, value in theirs.result.items())
    print(f"{len(theirs.result)} figures: {figures}")
    counts = f"{plain.pictures // 2} pictures, {plain.sentences // 2} sentences"
    sides = {
        "negbench, first run": (f"ours: {options.scenes} pictures, each sentence once", ours),
        "negbench, again": ("ours again: nothing to encode", again),
    }
    shown(options.out, (f"plain: {counts}", theirs), sides, options.scenes, top, "6 figures equal")


if __name__ == "__main__":
    main()
