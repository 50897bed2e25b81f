"""Metrics in a training loop: the same numbers as of all pictures at once, on any number of processes."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from nein.metrics import Batch, EditPair, MetricError, load_encoder, score
from nein.metrics.fid import frechet_distance
from nein.metrics.images import l1
from nein.metrics.table import METRICS
from nein.metrics.training import EditingMetric

rng = np.random.default_rng(5)
EDITED = [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(6)]
TARGET = [rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for _ in range(6)]

STACKED = torch.from_numpy(np.stack(EDITED)).permute(0, 3, 1, 2)  # N 3 H W


def given(tensor):
    EditingMetric("l1").update(tensor, TARGET[: len(tensor)])


def test_batches_one_after_another_give_the_mean_of_all_pictures():
    metric = EditingMetric("l1")
    metric.update(EDITED[:4], TARGET[:4])
    metric.update(EDITED[4:], TARGET[4:])
    expected = np.mean([l1(a, b) for a, b in zip(EDITED, TARGET, strict=True)])
    assert metric.compute().item() == pytest.approx(expected, rel=1e-12)
    metric.reset()
    assert torch.isnan(metric.compute())


@pytest.mark.parametrize(("black", "white"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_tensors_are_their_pictures_in_the_range_that_is_stated(black, white):
    listed, stacked = EditingMetric("l2"), EditingMetric("l2", data_range=(black, white))
    listed.update(EDITED, TARGET)
    target = torch.from_numpy(np.stack(TARGET)).permute(0, 3, 1, 2)
    stacked.update(STACKED.float() / 255 * (white - black) + black, target)
    assert listed.compute() == stacked.compute()


def test_a_pickled_metric_goes_on_and_scores_as_an_evaluation_does():
    metric = EditingMetric("lpips", "nano:lpips")
    metric.update(EDITED[:2], TARGET[:2])
    items = [EditPair(str(n), a, b) for n, (a, b) in enumerate(zip(EDITED[:2], TARGET, strict=False))]
    batch = Batch(items, {"lpips": load_encoder("lpips", "nano:lpips")})
    expected = [one.value for one in score([METRICS["lpips"]], batch)["lpips"]]
    assert metric.compute().item() == pytest.approx(np.mean(expected), rel=1e-12)
    copy = pickle.loads(pickle.dumps(metric))  # noqa: S301 - our own bytes
    for one in (metric, copy):
        one.update(EDITED[2:], TARGET[2:])
    assert copy.compute() == metric.compute()


def test_the_frechet_distance_is_one_of_all_pictures():
    metric = EditingMetric("fid", "nano:fid")
    metric.update(EDITED[:3], TARGET[:3])
    metric.update(EDITED[3:], TARGET[3:])
    encoder = load_encoder("fid", "nano:fid")
    # Features of other batches differ in the last bits of float32, and the distance squares their difference.
    expected = frechet_distance(encoder.encode(EDITED), encoder.encode(TARGET))
    assert metric.compute().item() == pytest.approx(expected, rel=1e-3)


def test_a_picture_that_cannot_be_scored_is_counted_and_in_no_mean():
    metric = EditingMetric("l1")
    metric.update([EDITED[1].astype(np.float32)], TARGET[:1])
    with pytest.warns(UserWarning, match="none of 1 pictures is scored: An image must be a uint8 array"):
        assert torch.isnan(metric.compute())
    metric.update(EDITED[:1], TARGET[:1])
    assert metric.unscored == 1
    assert metric.compute().item() == pytest.approx(l1(EDITED[0], TARGET[0]), rel=1e-12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EditingMetric("l3"), "Unknown metric 'l3'"),
        (lambda: EditingMetric("lpips"), "needs the model of lpips"),
        (lambda: EditingMetric("l1", "nano:lpips"), "needs no model"),
        (lambda: EditingMetric("l1").update(EDITED, TARGET[:2]), "6 of edited, 2 of target"),
        (lambda: EditingMetric("l1").update(torch.zeros(3, 8, 8), TARGET[:1]), r"\(N, 3, H, W\)"),
        (lambda: given(torch.full((1, 3, 8, 8), torch.nan)), "range from nan to nan, outside"),
        (lambda: given(STACKED.float()), r"range from 0 to 255, outside data_range=\(0, 1\)"),
        (lambda: given(STACKED.float() / 127.5 - 1), "range from -1 to 1, outside"),
        (lambda: given(STACKED.long()), "is uint8 or floating point, not torch.int64"),
        (lambda: EditingMetric("removal_vqa", "nano:llava").update(EDITED), "needs sample and objects"),
    ],
)
def test_a_mistake_is_one_sentence(make, said):
    with pytest.raises(MetricError, match=said):
        make()


def _rank(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    metric = EditingMetric("l1")
    metric.update(EDITED[rank::2], TARGET[rank::2])
    Path(folder, f"{rank}.txt").write_text(repr(metric.compute().item()))
    torch.distributed.destroy_process_group()


def test_two_processes_compute_what_one_does(tmp_path):
    torch.multiprocessing.start_processes(_rank, args=(str(tmp_path),), nprocs=2, start_method="fork")
    alone = EditingMetric("l1")
    alone.update(EDITED, TARGET)
    shared = [float((tmp_path / f"{rank}.txt").read_text()) for rank in range(2)]
    assert shared == [pytest.approx(alone.compute().item())] * 2
