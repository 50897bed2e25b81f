"""Trackers show the figures of an evaluation."""

from unittest import mock

import pytest

from nein.engine import images
from nein.reporting import figures as frames
from nein.reporting import tracking
from tests.helpers.commands import exit_code

WORDS = ("negbench", "eval", "--model", "random", "--scenes", "64", "--limit", "12")


def test_tensorboard_gets_every_figure_of_an_evaluation(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert exit_code(*WORDS, "--trackers", "tensorboard", "--out", tmp_path) == 0
    events = EventAccumulator(str(tmp_path / "tracking"))
    events.Reload()
    shown = {tag: events.Scalars(tag)[-1].value for tag in events.Tags()["scalars"]}
    figures = frames.records(frames.read(tmp_path / "random" / "nano" / "figures.csv"))
    recall = next(
        row for row in figures if row["metric"] == "recall@1" and row["direction"] == "text_to_image"
    )
    name = f"negbench/random/retrieval/recall@1/templated/{recall['kind']}/text_to_image"
    assert shown[name] == pytest.approx(recall["value"])  # tensorboard keeps float32
    assert shown[f"{name}/unscored"] == 0
    numbers = {tag for tag in shown if not tag.endswith(("/low", "/high", "/unscored"))}
    assert len(numbers) == sum(row["value"] is not None for row in figures)
    [table] = [tag for tag in events.Tags()["tensors"] if tag.startswith("Text to image retrieval")]
    assert "| random |" in " ".join(events.Tensors(table)[0].tensor_proto.string_val[0].decode().split())
    assert set(events.Tags()["images"]) == {"recall", "mcq", "choices"}
    picture = images.decode(tmp_path / "recall.png")
    assert (events.Images("recall")[0].height, events.Images("recall")[0].width) == picture.shape[:2]


def test_a_tracker_that_works_in_every_process_finds_out_which_this_is(tmp_path, monkeypatch):
    """As that of wandb: its log asks a state that nobody else has made where no model is on accelerate."""
    from accelerate import PartialState
    from accelerate import tracking as theirs
    from accelerate.logging import get_logger

    tracker = mock.Mock()
    tracker.start.side_effect = lambda: get_logger("accelerate.tracking").debug("started")
    kind = mock.Mock(return_value=tracker, requires_logging_directory=False)
    monkeypatch.setattr(PartialState, "_shared_state", {})
    monkeypatch.setitem(theirs.LOGGER_TYPE_TO_CLASS, "everywhere", kind)
    what = {"benchmark": "b", "model": "m", "task": "t", "metric": "accuracy", "variant": "v"}
    figures = frames.frame([frames.number(0.5, unit="%", **what)])
    tracking.log(["everywhere"], tmp_path, {"seed": 0}, figures)
    [(values,)] = [call.args for call in tracker.log.call_args_list]
    assert values["b/m/t/accuracy/v"] == 0.5
