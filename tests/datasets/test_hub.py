from __future__ import annotations

import pytest

from nein.datasets import hub
from nein.engine.errors import UserError


def test_a_reference_has_a_name_and_perhaps_a_revision():
    assert hub.reference("hub:owner/name") == ("owner/name", None)
    assert hub.reference("hub:owner/name@v2") == ("owner/name", "v2")
    assert hub.reference("nano") is None


def test_without_a_network_a_sentence_says_so_and_what_to_do(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"'nobody/nothing' could not be .* no network, or HF_HUB_OFFLINE"):
        hub.read(hub.Reference("nobody/nothing", None), "test")
