import pytest
from huggingface_hub import constants

from nein.loading.errors import UserError
from nein.loading.references import load_attribute, parse_reference
from nein.models import editor_choice, references

URL = "http://localhost:8000/v1"


@pytest.mark.parametrize(
    "reference, expected",
    [
        (f"openai:{URL}#owner/eye-7b", ("served", "owner/eye-7b", None, URL)),
        ("openai:gpt-image-2", ("served", "gpt-image-2", None, None)),
        ("openai:ftp://host#eye-7b", ("served", "eye-7b", None, "")),
        ("openai:http://host:port#eye-7b", ("served", "eye-7b", None, "")),
        ("nano:ip2p", ("embedded", "nano:ip2p", None, None)),
        ("plugin:mirror", ("plugin", "mirror", None, None)),
        ("package.module:edit", ("attribute", "edit", None, None)),
        ("../my file.py:edit", ("attribute", "edit", None, None)),
        ("./missing@folder", ("local", "./missing@folder", None, None)),
        ("here@folder", ("local", "here@folder", None, None)),
        ("~/models/mine", ("local", "~/models/mine", None, None)),
        ("owner/name", ("hub", "owner/name", None, None)),
        ("owner/name@v2", ("hub", "owner/name", "v2", None)),
        ("owner/name:file.safetensors", ("hub", "owner/name:file.safetensors", None, None)),
        ("hub:owner/name", ("hub", "hub:owner/name", None, None)),
        ("ip2p", ("name", "ip2p", None, None)),
        ("x" * 5000, ("name", "x" * 5000, None, None)),
    ],
)
def test_the_form_of_a_reference_says_its_kind(reference, expected, tmp_path, monkeypatch):
    (tmp_path / "here@folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_reference(reference)[1:] == expected


def test_an_attribute_of_a_file_is_loaded_and_may_have_a_name_of_the_users(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def edit(image, instruction):\n    return image\n")
    assert load_attribute(f"{file}:edit")(1, "No cat.") == 1
    for label in ("my-edit", "mein größter Editor (2)"):
        assert editor_choice.choose_editor(f"{label}={file}:edit", "paper", {}).slug == label
    assert references.slugify("./runs/ft1/model") == references.slugify("ft1/model") == "ft1-model"
    for name, why in (("edti", "did you mean 'edit'"), ("nothing", "has no 'nothing'")):
        with pytest.raises(UserError, match=why):
            load_attribute(f"{file}:{name}")


@pytest.mark.parametrize(
    ("editor", "judge", "family"),
    [
        ("qwen-image-edit-2511", "Qwen/Qwen2.5-VL-7B-Instruct", "qwen"),
        (f"openai:{URL}#Qwen/Qwen-Image-Edit", "mine=openai:Qwen3-VL-8B", "qwen"),
        ("openai:gpt-image-2", "openai:gpt-5-mini", "gpt"),
        ("openai:gpt-image-2", "Qwen/Qwen2.5-VL-7B-Instruct", ""),
        ("qwen-image-edit", "nano:llava", ""),
        ("identity", "Qwen/Qwen2.5-VL-7B-Instruct", ""),
    ],
)
def test_a_judge_of_the_editors_own_family_is_noted(editor, judge, family):
    note = editor_choice.choose_editor(editor, "paper", {}).warn_of_kinship(judge)
    assert (f"are of one family, {family}; judges prefer their own" in note) == bool(family) == bool(note)


def test_what_is_behind_a_reference_is_told_without_loading_it(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.syspath_prepend(tmp_path)
    repository, (one, two) = tmp_path / "hub" / "models--owner--name", ("a" * 40, "b" * 40)
    (tmp_path / "folder").mkdir()

    def moved(commit):
        for file, text in ((f"snapshots/{commit}/config.json", "{}"), ("refs/main", commit)):
            (repository / file).parent.mkdir(parents=True, exist_ok=True)
            (repository / file).write_text(text)

    changes = {
        "owner/name": moved,
        "sentence:owner/name": moved,
        f"judge:{tmp_path}/folder": (tmp_path / "folder" / "config.json").write_text,
        f"mine={tmp_path}/folder": (tmp_path / "folder" / "model.safetensors").write_text,
        "behind_a_name:edit": (tmp_path / "behind_a_name.py").write_text,
        f"{tmp_path}/file.py:edit": (tmp_path / "file.py").write_text,
    }
    for reference, change in changes.items():
        found = [references.digest_model(reference) for text in (one, two, one) if change(text) or True]
        assert found[0] == found[2] != found[1], reference
        assert found[0], reference
    for reference in ("owner/other", "ip2p", f"openai:{URL}#x", "random:0"):
        assert references.digest_model(reference) == ""
