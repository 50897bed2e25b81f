from __future__ import annotations

import pytest
import yaml

from nein.benchmarks.nein import config
from nein.config import options
from nein.engine.errors import UserError


def parse(*argv):
    return config.EvalConfig.parse(argv)


def write(folder, text):
    (folder / "c.yaml").write_text(text)
    return str(folder / "c.yaml")


def test_command_line_beats_file_beats_preset_beats_default(tmp_path):
    file = write(tmp_path, "batch_size: 5\nseed: 7\nmodels:\n  clip: from/file\n")
    plain, filed = parse(), parse("--config", file)
    both = parse("--batch-size", "3", "--config", file)  # the flag wins although the file comes after it
    assert [plain.batch_size, filed.batch_size, both.batch_size] == [16, 5, 3]
    assert [plain.seed, filed.seed, both.seed] == [0, 7, 7]
    assert [plain.models.clip, filed.models.clip] == ["nano:clip", "from/file"]
    assert filed.models.dino == "nano:dino"  # a file replaces only the keys it names
    assert parse("--models.clip", "mine/clip", "--config", file).models.clip == "mine/clip"
    assert plain.control == ["remove"]  # the nano preset's, not the default
    file = write(tmp_path, "preset: paper\ndata: somewhere\n")
    assert parse("--config", file).models.ovd == "google/owlv2-large-patch14-ensemble"
    assert parse("--config", file, "--preset", "nano").models.ovd == "nano:owlv2"


def test_lists_are_commas_or_repeats_and_overrides_only_those_given():
    assert parse("--editor", "zone,ip2p", "--editor=./c").editor == ["zone", "ip2p", "./c"]
    assert parse("--control", "none").control == []
    assert parse("--metrics", "dino,l1").metrics == ["l1", "dino"]  # in the order of the table
    assert len(parse("--metrics", "all").metrics) == 12
    assert parse().editor_overrides() == {}
    given = parse("--steps", "7", "--guidance-scale", "2.5", "--editor-options.resize", "none")
    assert given.editor_overrides() == {"steps": 7, "guidance_scale": 2.5, "resize": "none"}


def test_the_printed_configuration_reads_back_as_itself(tmp_path):
    first = parse("--seed", "3", "--limit", "9", "--models.vqa", "x/y", "--columns.NeIn", "id")
    assert parse("--config", write(tmp_path, options.dump(first))) == first
    assert yaml.safe_load(options.dump(first))["models"]["vqa"] == "x/y"


@pytest.mark.parametrize(("argv", "sentence"), [
    ("--bach-size 3", "Unknown option --bach-size; did you mean --batch-size?"),
    ("--preset papr", "Unknown preset 'papr'; did you mean 'paper'?"),
    ("--metrics clip-ii", "Unknown metric 'clip-ii'; did you mean 'clip_i'?"),
    ("--stages edt", "Unknown stage 'edt'; did you mean 'edit'?"),
    ("--control rm", "Unknown control 'rm'. Allowed: remove, add."),
    ("--align strech", "--align is 'strech'; it must be one of stretch, crop (did you mean 'stretch'?)"),
    ("--seed -3", "--seed is '-3'; it must be a whole number, 0 or above."),
    ("--batch-size foo", "--batch-size is 'foo'; it must be a whole number above 0, or auto."),
    ("--guidance-scale abc", "--guidance-scale is 'abc'; it must be a number above 0."),
    ("--editor", "--editor needs a value"),
    ("stray", "'stray' stands without an option"),
    ("limit 3", "'limit' stands without an option; did you mean --limit?"),
    ("--preset paper", "The paper preset needs NeIn's data: --data FOLDER"),
    ("--config no.yaml", "There is no configuration file 'no.yaml'."),
    ("--config .", "'.' is a folder; --config takes a YAML file."),
])  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_sentence(argv, sentence):
    with pytest.raises(UserError) as caught:
        parse(*argv.split())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "sentence"), [
    ("batch_sise: 3", "Unknown key 'batch_sise' in the configuration file; did you mean 'batch_size'?"),
    ("models:\n  clipp: x",
     "Unknown key 'models.clipp' in the configuration file; did you mean 'models.clip'?"),
    ("batch_size: foo", "--batch-size is 'foo'; it must be a whole number above 0, or auto."),
    ("- a", "must hold 'key: value' lines"),
    ("a: [", "is not valid YAML"),
    ("preset: big", "Unknown preset 'big'"),
])  # fmt: skip
def test_a_mistake_in_a_file_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(UserError) as caught:
        parse("--config", write(tmp_path, text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_both_presets_name_models_for_every_metric_they_ask_for():
    for argv in ([], ["--preset", "paper", "--data", "x"]):
        found = parse(*argv)
        assert len(found.metrics) == 11
        assert all(getattr(found.models, kind) for kind in ("clip", "dino", "lpips", "fid", "vqa", "ovd"))
    assert found.protocol == "paper"
