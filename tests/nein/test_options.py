"""What the command line, presets and references say: options, editors, models, and the other commands."""

import subprocess
import sys
from pathlib import Path

import pytest

from nein import cli
from nein.benchmarks.nein import config, stages
from nein.editors import EditorError
from nein.engine import exits
from nein.engine.folder import CONTENTS
from nein.loading.errors import UserError
from nein.models import editor_choice, references
from tests.helpers import commands

PAPER = ("--preset", "paper", "--data", "x")


def choose(*argv):
    chosen = config.EvalConfig.parse(["--editor", *argv])
    return editor_choice.resolve_editors(
        chosen.editor, chosen.preset, chosen.editor_options, chosen.edited, chosen.mend
    )


def asked(*argv):
    return [choice.name for choice in choose(*argv)]


def test_all_is_every_editor_that_ships_once_in_order_and_says_what_it_leaves_out(monkeypatch, caplog):
    found = asked("ip2p,all")
    assert found[0] == "ip2p"
    assert len(found) == len(set(found))
    assert {"ip2p", "magicbrush"} <= set(found)
    monkeypatch.setattr("nein.nano.zoo.available", lambda: ("ip2p", "clip"))
    assert [name for name in asked("all") if name != "zone"] == ["ip2p", "identity", "solid"]
    for name in ("magicbrush", "hqedit", "instructdiffusion"):
        assert f"leaves out {name}: 'nano:{name}' cannot be resolved" in caplog.text
    shipped = ("instructdiffusion", "ip2p", "hqedit", "magicbrush")
    monkeypatch.setattr("nein.nano.zoo.available", lambda: shipped)
    order = ["ip2p", "magicbrush", "hqedit", "instructdiffusion", "identity", "solid"]
    assert [name for name in asked("all") if name != "zone"] == order


def test_all_of_the_paper_preset_says_how_to_come_by_what_is_on_no_hub(caplog):
    found = [name for name in asked("all", *PAPER) if name != "zone"]
    assert found == ["ip2p", "magicbrush", "hqedit", "identity"]
    assert "instructdiffusion: Editor 'instructdiffusion' needs your checkpoint: its" in caplog.text
    with pytest.raises(UserError, match=r"'instructdiffusion' needs your checkpoint: .*nein convert"):
        choose("instructdiffusion", *PAPER)


def test_a_row_takes_another_checkpoint(tmp_path):
    (tmp_path / "mine").mkdir()
    [found] = choose(f"instructdiffusion={tmp_path}/mine", *PAPER, "--editor-options.steps", "9")
    assert (found.checkpoint, found.editor) == (f"{tmp_path}/mine", "instructdiffusion")
    assert (found.options["guidance"], found.options["steps"]) == ("instructdiffusion", 9)
    assert found.slug == f"instructdiffusion-{tmp_path.name}-mine"
    [hub] = choose("magicbrush=owner/name@rev")
    assert (hub.checkpoint, hub.editor) == ("owner/name@rev", "magicbrush-nano")
    with pytest.raises(UserError, match="'identity' has no model"):
        choose("identity=owner/name")


def test_options_go_to_the_editors_that_have_them_keep_their_type_and_are_part_of_the_identity():
    editor, control = choose("ip2p,identity", "--editor-options.steps", "7")
    assert (editor.options["steps"], control.options) == (7, {})
    [found] = choose("cosxl-edit", *PAPER, "--editor-options.cosxl", "false", "--editor-options.lora", "a/b")
    assert [found.options[name] for name in ("cosxl", "lora")] == [False, "a/b"]
    [plain], [other] = choose("flux2", *PAPER), choose("flux2", *PAPER, "--editor-options.offload", "model")
    assert plain.identity() == other.identity()  # offloading makes no other run
    assert plain.options != other.options
    [plain] = choose("ip2p")
    [steps] = choose("ip2p", "--editor-options.steps", "7")
    assert steps.options == {**plain.options, "steps": 7}
    assert plain.identity() != steps.identity()
    assert steps.identity()["editor.steps"] == 7


def test_every_model_of_an_editor_is_given_and_its_name_kept_in_the_identity(monkeypatch):
    [choice] = choose("zone", "--editor-options.sam", "owner/sam@v1")
    built = {}
    monkeypatch.setattr("nein.editors.get_editor", lambda name, **given: built.update(given) or name)
    assert choice.load(device="cpu", dtype="float32", batch_size=1) == "zone-nano"
    for option, name in {"checkpoint": "ip2p", "magicbrush": "magicbrush", "action": "zone-action"}.items():
        assert built[option] == f"nano:{name}"
    assert built["sam"] == choice.identity()["editor.sam"] == "owner/sam@v1"
    assert choice.identity()["editor.magicbrush"] == "nano:magicbrush"


def test_an_editor_of_the_users_has_the_users_name_or_one_of_its_own(tmp_path):
    folder = tmp_path / "model"
    for place in (folder, tmp_path / "b" / "model"):
        place.mkdir(parents=True)
    one, other = choose(f"{folder},{tmp_path}/b/model")
    assert (one.slug, other.slug, one.checkpoint) == (f"{tmp_path.name}-model", "b-model", str(folder))
    plain, mine, row, both, twin = choose(
        f"{folder},mine={folder},magicbrush={folder},other=magicbrush={folder},another=ip2p"
    )
    assert [choice.slug for choice in (mine, both, twin)] == ["mine", "other", "another"]
    assert row.slug == f"magicbrush-{one.slug}"
    assert (mine.editor, mine.identity()) == (plain.editor, plain.identity())
    assert both.identity() == row.identity()
    [exchanged] = choose("magicbrush=ip2p")  # an editor is no checkpoint of another
    assert (exchanged.slug, exchanged.editor) == ("magicbrush", "ip2p-nano")
    assert exchanged.identity() == twin.identity()
    [same] = choose(f"ip2p=magicbrush={folder}")
    assert same.identity() == row.identity()
    with pytest.raises(UserError, match="have the same name, 'mine'"):
        choose(f"mine={folder},mine=ip2p")


def test_references_are_folders_ids_or_embedded_and_may_have_a_name_that_decides_nothing(tmp_path):
    resolved = {str(tmp_path): str(tmp_path), "owner/name@abc": "owner/name@abc", "alex": "alex",
                f"mine={tmp_path}": str(tmp_path)}  # fmt: skip
    assert {name: references.resolve(name) for name in resolved} == resolved
    with pytest.raises(UserError, match="'nano:nothing' cannot be resolved"):
        references.resolve("nano:nothing")
    assert references.split_label("mine=owner/name@abc") == ("mine", "owner/name@abc")
    (tmp_path / "a=b").mkdir()
    for plain in ("owner/name", "./a=b/c", "openai:http://a/v1?k=v#m", "=x", "x=", str(tmp_path / "a=b")):
        assert references.split_label(plain) == (None, plain)
    assert references.slugify(f"mine={tmp_path}") == "mine"
    assert references.slugify("owner/name@rev") == "owner-name-rev"
    assert references.identify("eye=openai:http://a/v1#m") == "openai:#m"
    one, other = (identity("removal_vqa", models={"vqa": name}) for name in ("j=a/b", "a/b"))
    assert one == other


def identity(metric, **given):
    return stages.collect_score_facts(metric, config.EvalConfig.create(**given), "cpu")


@pytest.mark.parametrize(("metric", "key", "given"), [
    ("l1", "align", {"align": "crop"}),
    ("clip_i", "clip", {"models": {"clip": "a/b"}}),
    ("removal_vqa", "protocol", {"protocol": "paper"}),
    ("removal_vqa", "article", {"article": "a_an"}),
    ("retention_vqa", "quantization", {"models": {"vqa_quantization": "bnb-fp4"}}),
    ("removal_ovd", "threshold", {"threshold": "0.2"}),
    ("auc_removal", "pad", {"models": {"ovd_pad": "gray"}}),
    ("fid", "protocol", {"protocol": "paper"}),
    ("retention_ovd", "dtype", {"judge_dtype": "bfloat16"}),
])  # fmt: skip
def test_what_changes_a_value_changes_the_identity_of_its_metric_alone(metric, key, given):
    before, after = identity(metric), identity(metric, **given)
    changed = {k for k in {*before, *after} if before.get(k) != after.get(k)}
    assert changed - {CONTENTS} == {key}
    other = {"threshold": 0.2, "models": {"vqa": "a/b"}, "protocol": "paper", "seed": 3}
    for name in ("l1", "dino", "lpips", "clip_t"):
        assert identity(name, **other) == identity(name)


def parse(*argv):
    return config.EvalConfig.parse(argv)


def write(folder, text):
    (folder / "c.yaml").write_text(text)
    return str(folder / "c.yaml")


def test_command_line_beats_file_beats_preset_beats_default(tmp_path):
    file = write(tmp_path, "preset: paper\ndata: somewhere\nmodels:\n  clip: from/file\n")
    plain, filed = parse(), parse("--config", file)
    both = parse("--models.clip", "mine/clip", "--config", file, "--preset", "nano")  # wherever it stands
    assert [one.models.clip for one in (plain, filed, both)] == ["nano:clip", "from/file", "mine/clip"]
    owlv2 = "google/owlv2-large-patch14-ensemble"  # a file replaces only the keys it names
    assert [one.models.ovd for one in (plain, filed, both)] == ["nano:owlv2", owlv2, "nano:owlv2"]
    assert plain.control == ["remove"]  # the nano preset's, not the default


def test_lists_are_commas_or_repeats_and_overrides_only_those_given():
    assert parse("--control", "none").control == []
    assert parse("--metrics", "dino,l1").metrics == ["l1", "dino"]  # in the order of the table
    assert len(parse("--metrics", "all").metrics) == 12
    assert parse().editor_options == {}
    options = {"steps": 7, "guidance_scale": 2.5, "resize": "none"}
    given = (word for name, value in options.items() for word in (f"--editor-options.{name}", str(value)))
    assert parse(*given).editor_options == options
    for found in (parse(), parse(*PAPER)):
        assert len(found.metrics) == 11
        assert all(getattr(found.models, kind) for kind in ("clip", "dino", "lpips", "fid", "vqa", "ovd"))
    assert found.protocol == "paper"


def test_models_that_must_be_here_are_looked_for_without_loading_and_others_left_out(monkeypatch, tmp_path):
    [choice] = choose("zone", *PAPER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        EditorError, match=r"no file 'ckpts/action_classifier.pth' for 'action'\. .*fetch .*/ZONE\.$"
    ):
        choice.check_references()
    (tmp_path / "ckpts").mkdir()
    (tmp_path / "ckpts" / "action_classifier.pth").write_bytes(b"")
    choice.check_references()
    [nano] = choose("zone", "--editor-options.sam", "nano:nothing")
    with pytest.raises(UserError, match="'nano:nothing' cannot be resolved"):
        nano.check_references()
    of_zone = ("ip2p", "magicbrush", "sam", "zone-action")
    for missing in (None, *of_zone):
        rest = [name for name in of_zone if name != missing]
        monkeypatch.setattr("nein.nano.zoo.available", lambda rest=rest: rest)
        assert ("zone" in asked("all")) == (missing is None)


def test_nein_data_draws_the_miniature_world_and_finds_what_is_wrong(tmp_path, capsys):
    assert data("nano", "--split", "dev", "--sources", 3, "--out", tmp_path) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.parent == tmp_path
    assert data("nano", "--sources", 10**20) != 0  # it would draw until the disk is full
    assert "it must be less than or equal to 1000000." in capsys.readouterr().err
    assert data("check", folder, "--split", "dev") == 0
    assert "samples of 3 source images are in order" in capsys.readouterr().out
    picture = min((folder / "nein_dev").iterdir())
    picture.write_bytes(picture.read_bytes()[:300])
    assert data("check", folder, "--split", "dev") == 2  # although the header is whole
    assert f"{picture.name}: the image cannot be decoded" in capsys.readouterr().err
    assert data("nano", "--split", "nowhere", "--out", tmp_path) == 2
    assert "--split is 'nowhere'; it must be" in capsys.readouterr().err


def test_ends_of_a_command_are_no_tracebacks(capsys):
    line = f"{sys.executable} -m nein eval --dry-run | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("editor:")
    assert "Traceback" not in done.stderr
    full = OSError(28, "No space left on device", "/a/b.png")
    with pytest.raises(SystemExit) as caught:
        exits.exit_with(lambda: (_ for _ in ()).throw(full))
    assert (caught.value.code, "The disk is full (/a/b.png)" in capsys.readouterr().err) == (2, True)
    with pytest.raises(SystemExit) as ended:
        cli.main_eval(["--limit", "3", "--dry-run"])  # the name in the cards
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("editor:")


def data(*argv):
    return commands.exit_code("data", *argv)
