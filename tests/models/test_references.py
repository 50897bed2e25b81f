import pytest

from nein.engine.errors import UserError
from nein.loading.attributes import load_attribute
from nein.loading.references import parse_reference
from nein.models import editor_choice

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
    assert editor_choice.choose_editor(f"my-edit={file}:edit", "paper", {}).slug == "my-edit"
    for name, why in (("edti", "did you mean 'edit'"), ("nothing", "has no 'nothing'")):
        with pytest.raises(UserError, match=why):
            load_attribute(f"{file}:{name}")
