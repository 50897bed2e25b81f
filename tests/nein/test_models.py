from __future__ import annotations

import pytest

from nein.benchmarks.nein import config, models
from nein.editors import EditorError
from nein.engine.errors import UserError
from nein.models import editor_choice, references


def choose(*argv: str) -> list[editor_choice.EditorChoice]:
    chosen = config.EvalConfig.parse(argv)
    return editor_choice.resolve_editors(
        chosen.editor, chosen.preset, chosen.editor_overrides(), chosen.edited, chosen.mend
    )


def test_the_same_name_means_the_row_of_the_preset():
    [nano] = choose("--editor", "magicbrush")
    [paper] = choose("--editor", "magicbrush", "--preset", "paper", "--data", "x")
    assert (nano.slug, paper.slug) == ("magicbrush", "magicbrush")
    assert nano.checkpoint == "nano:magicbrush"
    assert not paper.checkpoint.startswith("nano:")
    assert paper.options["steps"] == 100
    assert nano.options["steps"] < 100


def test_all_is_every_editor_of_the_preset_once():
    found = [choice.asked for choice in choose("--editor", "ip2p,all")]
    assert found[0] == "ip2p"
    assert len(found) == len(set(found))
    assert {"ip2p", "magicbrush"} <= set(found)
    assert set(found) <= {"ip2p", "magicbrush", "zone", "hqedit", "instructdiffusion", "identity", "solid"}


def test_all_leaves_out_what_does_not_ship_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr("nein.nano.zoo.available", lambda: ("ip2p", "clip"))
    found = [choice.asked for choice in choose("--editor", "all")]
    assert [name for name in found if name != "zone"] == ["ip2p", "identity", "solid"]
    for name in ("magicbrush", "hqedit", "instructdiffusion"):
        assert f"leaves out {name}: its weights are not in this installation" in caplog.text
    shipped = ("instructdiffusion", "ip2p", "hqedit", "magicbrush")
    monkeypatch.setattr("nein.nano.zoo.available", lambda: shipped)
    caplog.clear()
    found = [choice.asked for choice in choose("--editor", "all")]
    order = ["ip2p", "magicbrush", "hqedit", "instructdiffusion", "identity", "solid"]
    assert [name for name in found if name != "zone"] == order
    assert "hqedit" not in caplog.text


def test_all_of_the_paper_preset_says_how_to_come_by_what_is_on_no_hub(caplog):
    found = [c.asked for c in choose("--editor", "all", "--preset", "paper", "--data", "x")]
    assert [name for name in found if name != "zone"] == ["ip2p", "magicbrush", "hqedit", "identity"]
    assert "leaves out instructdiffusion: its checkpoint is on no hub" in caplog.text
    assert "nein convert" in caplog.text
    with pytest.raises(UserError, match=r"'instructdiffusion' needs a checkpoint of yours: .*nein convert"):
        choose("--editor", "instructdiffusion", "--preset", "paper", "--data", "x")


def test_a_row_takes_another_checkpoint(tmp_path):
    (tmp_path / "mine").mkdir()
    [found] = choose(
        "--editor", f"instructdiffusion={tmp_path}/mine", "--preset", "paper", "--data", "x", "--steps", "9"
    )
    assert found.checkpoint == f"{tmp_path}/mine"
    assert found.row == "instructdiffusion"
    assert (found.options["guidance"], found.options["steps"]) == ("instructdiffusion", 9)
    assert found.slug.startswith("instructdiffusion-mine-")
    [hub] = choose("--editor", "magicbrush=owner/name@rev")
    assert (hub.checkpoint, hub.row) == ("owner/name@rev", "magicbrush-nano")
    with pytest.raises(UserError, match="'identity' has no model"):
        choose("--editor", "identity=owner/name")


def test_an_option_goes_to_the_editors_that_have_it():
    editor, control = choose("--editor", "ip2p,identity", "--steps", "7", "--editor-options.offload", "model")
    assert editor.options["steps"] == 7
    assert editor.options["offload"] == "model"
    assert control.options == {}
    with pytest.raises(EditorError, match="Unknown option 'stepz'"):
        choose("--editor", "ip2p,identity", "--editor-options.stepz", "7")


def test_options_of_the_command_line_keep_their_type():
    argv = ["--editor-options.compile", "true", "--editor-options.ema", "false"]
    [found] = choose("--editor", "ip2p", *argv, "--editor-options.attention", "math")
    assert (found.options["compile"], found.options["ema"]) == (True, False)
    assert found.options["attention"] == "math"


def test_offloading_does_not_make_another_run():
    [plain], [other] = (
        choose("--editor", "ip2p"),
        choose("--editor", "ip2p", "--editor-options.offload", "model"),
    )
    assert plain.identity() == other.identity()
    assert plain.options != other.options


def test_an_editor_of_several_models_is_left_out_when_one_does_not_ship(monkeypatch):
    models_of_zone = ("ip2p", "magicbrush", "sam", "zone-action")
    monkeypatch.setattr("nein.nano.zoo.available", lambda: models_of_zone)
    assert "zone" in [choice.asked for choice in choose("--editor", "all")]
    for missing in models_of_zone:
        rest = [name for name in models_of_zone if name != missing]
        monkeypatch.setattr("nein.nano.zoo.available", lambda rest=rest: rest)
        assert "zone" not in [choice.asked for choice in choose("--editor", "all")]


def test_every_model_of_an_editor_is_resolved_and_its_name_kept_in_the_identity(monkeypatch, tmp_path):
    monkeypatch.setattr("nein.nano.zoo.path", lambda name: tmp_path / name)
    [choice] = choose("--editor", "zone", "--editor-options.sam", "owner/sam@v1")
    built = {}
    monkeypatch.setattr("nein.editors.get_editor", lambda name, **given: built.update(given) or name)
    assert choice.load(device="cpu", dtype="float32", batch_size=1) == "zone-nano"
    assert built["checkpoint"] == str(tmp_path / "ip2p")
    assert built["magicbrush"] == str(tmp_path / "magicbrush")
    assert built["action"] == str(tmp_path / "zone-action")
    assert built["sam"] == "owner/sam@v1"
    assert choice.identity()["editor.magicbrush"] == "nano:magicbrush"
    assert choice.identity()["editor.sam"] == "owner/sam@v1"


def test_models_that_must_be_here_are_looked_for_without_loading(monkeypatch, tmp_path):
    [choice] = choose("--editor", "zone", "--preset", "paper", "--data", "x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EditorError, match=r"not at 'ckpts/action_classifier.pth'; fetch"):
        choice.check_references()
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "ckpts" / "action_classifier.pth").write_bytes(b"")
    choice.check_references()
    [nano] = choose("--editor", "zone", "--editor-options.sam", "nano:nothing")
    with pytest.raises(UserError, match="no embedded model 'nano:nothing'"):
        nano.check_references()


def test_overrides_reach_the_editor_and_its_identity():
    [plain], [other] = choose("--editor", "ip2p"), choose("--editor", "ip2p", "--steps", "7")
    assert other.options == {**plain.options, "steps": 7}
    assert plain.identity() != other.identity()
    assert other.identity()["editor.steps"] == 7


def test_a_folder_is_an_editor_with_a_name_of_its_own(tmp_path):
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "b" / "model").mkdir(parents=True)
    one, other = choose("--editor", f"{tmp_path}/a/model,{tmp_path}/b/model")
    assert one.slug.startswith("model-")
    assert one.slug != other.slug
    assert one.checkpoint == f"{tmp_path}/a/model"
    assert references.slug("owner/name@rev").startswith("name-rev-")
    assert "/" not in references.slug("owner/name@rev")


def test_an_editor_of_the_users_has_the_users_name(tmp_path, caplog):
    folder = tmp_path / "model"
    folder.mkdir()
    plain, mine, row, both, twin = choose(
        "--editor", f"{folder},mine={folder},magicbrush={folder},other=magicbrush={folder},another=ip2p"
    )
    assert [choice.slug for choice in (mine, both, twin)] == ["mine", "other", "another"]
    assert row.slug.startswith("magicbrush-model-")
    assert (mine.checkpoint, mine.row) == (plain.checkpoint, plain.row)
    assert mine.identity() == plain.identity()
    assert both.identity() == row.identity()
    [exchanged] = choose("--editor", "magicbrush=ip2p")  # an editor is no checkpoint of another
    assert (exchanged.slug, exchanged.row) == ("magicbrush", "ip2p-nano")
    assert exchanged.identity() == twin.identity()
    [same] = choose("--editor", f"ip2p=magicbrush={folder}")
    assert same.identity() == row.identity()
    with pytest.raises(UserError, match="have one name, 'mine'"):
        choose("--editor", f"mine={folder},mine=ip2p")
    assert not caplog.records
    choose("--editor", f"magicbrsh={folder}")
    assert "if 'magicbrush' is meant" in caplog.text


def test_a_reference_may_have_a_name_and_its_results_do_not_depend_on_it(tmp_path):
    assert references.named("mine=owner/name@abc") == ("mine", "owner/name@abc")
    for plain in ("owner/name", "./a=b/c", "openai:http://a/v1?k=v#m", "=x", "x="):
        assert references.named(plain) == (None, plain)
    (tmp_path / "a=b").mkdir()
    assert references.named(str(tmp_path / "a=b")) == (None, str(tmp_path / "a=b"))
    assert references.resolve(f"mine={tmp_path}") == (str(tmp_path), None)
    assert references.slug(f"mine={tmp_path}") == "mine"
    assert references.identity("eye=openai:http://a/v1#m") == "openai:#m"
    named = models.score_identity("removal_vqa", config.EvalConfig.parse(["--models.vqa", "j=a/b"]), "cpu")
    plain_ = models.score_identity("removal_vqa", config.EvalConfig.parse(["--models.vqa", "a/b"]), "cpu")
    assert named == plain_


def test_an_unknown_editor_is_refused_before_anything_is_loaded():
    with pytest.raises(EditorError, match="did you mean 'magicbrush'"):
        choose("--editor", "magicbrsh")
    with pytest.raises(EditorError, match="Unknown option 'steps'"):
        choose("--editor", "identity", "--steps", "3")


def test_references_are_folders_ids_or_embedded(tmp_path):
    assert references.resolve(str(tmp_path)) == (str(tmp_path), None)
    assert references.resolve("owner/name@abc") == ("owner/name", "abc")
    assert references.resolve("owner/name") == ("owner/name", None)
    assert references.resolve("alex") == ("alex", None)
    with pytest.raises(UserError, match="no embedded model 'nano:nothing'"):
        references.resolve("nano:nothing")


@pytest.mark.parametrize(
    ("metric", "key", "argv"),
    [
        ("l1", "align", ["--align", "crop"]),
        ("clip_i", "clip", ["--models.clip", "a/b"]),
        ("removal_vqa", "protocol", ["--protocol", "paper"]),
        ("removal_vqa", "article", ["--article", "a_an"]),
        ("retention_vqa", "quantization", ["--models.vqa_quantization", "bnb-fp4"]),
        ("removal_ovd", "threshold", ["--threshold", "0.2"]),
        ("auc_removal", "pad", ["--models.ovd_pad", "gray"]),
        ("fid", "protocol", ["--protocol", "paper"]),
        ("retention_ovd", "dtype", ["--judge-dtype", "bfloat16"]),
    ],
)
def test_what_changes_a_value_changes_the_identity_of_its_metric(metric, key, argv):
    before = models.score_identity(metric, config.EvalConfig.parse([]), "cpu")
    after = models.score_identity(metric, config.EvalConfig.parse(argv), "cpu")
    assert {k for k in {*before, *after} if before.get(k) != after.get(k)} == {key}


def test_what_does_not_concern_a_metric_leaves_its_identity_alone():
    other = config.EvalConfig.parse(
        ["--threshold", "0.2", "--models.vqa", "a/b", "--protocol", "paper", "--seed", "3"]
    )
    for metric in ("l1", "dino", "lpips", "clip_t"):
        assert models.score_identity(metric, other, "cpu") == models.score_identity(
            metric, config.EvalConfig.parse([]), "cpu"
        )
