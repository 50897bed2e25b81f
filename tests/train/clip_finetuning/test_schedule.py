import math

import pytest
import torch

from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import Option, Question, RetrievalItem
from nein.loading.errors import UserError
from nein.train.clip_finetuning import towers
from nein.train.clip_finetuning.data import Corpus, Part, Reader
from nein.train.clip_finetuning.options import ClipConfig


def corpus(captions, questions):
    media = Drawn(lambda name: [])
    items = [RetrievalItem(f"{k}", "p", ("A",)) for k in range(captions)]
    asked = [Question(f"{k}", "p", (Option("a"), Option("b")), 0) for k in range(questions)]
    return Corpus(Part(items, media), Part(asked, media), {})


def settings(protocol, **options):
    given = {
        "epoch_share": 0.35, "batch_size": 10, "questions_per_step": 10, "epochs": 1.0, "warmup": 20,
        "learning_rate": 1.0, "alpha": ["0.99"],
    }  # fmt: skip
    return ClipConfig(protocol=protocol, **{**given, **options})


def rates(config, data):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=float(config.learning_rate))
    rate = towers.make_schedule(config, optimizer, data)
    values = []
    for _ in range(towers.count_steps(config, data)):
        values.append(rate.get_last_lr()[0])
        optimizer.step()
        rate.step()
    return values


def test_by_paper_the_cosine_spans_the_captions_though_training_ends_at_35_per_cent():
    data = corpus(3000, 2000)
    assert {p: towers.count_steps(settings(p), data) for p in ("paper", "fixed")} == {
        "paper": 70,
        "fixed": 70,
    }
    assert {p: towers.count_decay_steps(settings(p), data) for p in ("paper", "fixed")} == {
        "paper": 300,
        "fixed": 70,
    }
    paper, fixed = rates(settings("paper"), data), rates(settings("fixed"), data)
    # open_clip's formulas: (step + 1) / warmup, then half a cosine over all batches of the captions
    assert paper[:20] == pytest.approx([(k + 1) / 20 for k in range(20)])
    assert paper[20:] == pytest.approx(
        [0.5 * (1 + math.cos(math.pi * (k - 20) / (300 - 20))) for k in range(20, 70)]
    )
    assert paper[-1] > 0.9  # it has hardly begun to fall
    assert fixed[0] == 0
    assert fixed[-1] < 0.01


def test_several_passes_span_as_many_files_and_go_on_in_one_order():
    data = corpus(100, 400)
    paper, fixed = settings("paper", epochs=3.0), settings("fixed", epochs=3.0)
    assert (towers.count_steps(paper, data), towers.count_decay_steps(paper, data)) == (9, 30)
    orders = {}
    for config in (paper, fixed):
        orders[config.protocol] = [
            Reader(config, data).passes[0].index_at(position) for position in range(90)
        ]
    assert len(set(orders["paper"])) == 90  # what one pass has left the next one takes
    assert len(set(orders["fixed"])) < 90


def test_the_share_is_of_batches_by_paper_and_of_rows_by_fixed():
    data = corpus(118, 500)  # 11 batches and a rest that the released loader drops
    assert towers.count_steps(settings("paper"), data) == 3  # int(11 * 0.35)
    assert towers.count_steps(settings("fixed"), data) == 4  # int(118 * 0.35) // 10
    config = settings("paper", epochs=None, steps=140)  # taken as it is, and spans what as many passes would
    assert (
        towers.count_steps(config, corpus(3000, 2000)),
        towers.count_decay_steps(config, corpus(3000, 2000)),
    ) == (140, 600)
    alone = settings("paper", alpha=["1"])
    assert towers.count_steps(alone, corpus(1000, 20)) == 35  # the questions are not in use


def test_the_papers_preset_takes_the_papers_schedule_and_a_linear_one_is_refused():
    given = ["--preset", "paper", "--captions", "a.csv", "--questions", "b.csv"]
    assert ClipConfig.parse_line(given)[0].protocol == "paper"
    with pytest.raises(UserError, match="constant or cosine"):
        ClipConfig.parse_line([*given, "--schedule", "linear"])
    flat = rates(settings("paper", schedule="constant"), corpus(3000, 2000))
    assert flat[20:] == [1.0] * 50
    # By this an unfinished run of another version, which used cosines, is refused.
    assert settings("paper").identity()["questions scored by"] == "dot products"
    assert "questions scored by" not in settings("fixed").identity()
