import pytest
import torch
from pydantic import BaseModel

from nein.metrics import MetricError
from nein.metrics.chat import Message, Sampling
from nein.metrics.chat.local import LocalChat, load_text
from nein.models import llm
from nein.models.cached import Services
from tests.llm.conftest import make_random


class Number(BaseModel):
    x: int


def load(folder, services=None, **options):
    return llm.load(llm.LlmOptions(str(folder), max_tokens=12, **options), services=services)


def test_an_answer_depends_on_prompt_and_seed_and_on_nothing_else(random_model):
    client = load(random_model, temperature=1.0)
    requests = [llm.Request("One", 1), llm.Request("One", 2), llm.Request("Two", 1)]
    torch.manual_seed(99)
    state = torch.get_rng_state()
    texts = [outcome.reason for outcome in client.complete(requests, Number)]
    assert len(set(texts)) == 3
    assert torch.equal(torch.get_rng_state(), state)
    again = load(random_model, temperature=1.0).complete(requests[::-1], Number)
    assert [outcome.reason for outcome in again[::-1]] == texts


def test_greedy_answers_are_those_of_generate(random_model):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(random_model)
    model = AutoModelForCausalLM.from_pretrained(random_model)
    ids = words("[user] OneAnswer:", add_special_tokens=False, return_tensors="pt")
    expected = model.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :]
    [found] = load_text(str(random_model), device="cpu", dtype="float32").complete(
        [Message(("One",))], Sampling(12)
    )
    assert found.text == words.decode(expected, skip_special_tokens=True).strip()


def test_answers_are_kept_for_these_weights_only(random_model, tmp_path, monkeypatch):
    services = Services.create(object(), tmp_path / "answers.sqlite")
    with monkeypatch.context() as patch:
        patch.setattr(LocalChat, "decode_ids", lambda self, ids: '{"x": 14}')
        [kept] = load(random_model, services).complete([llm.Request("One")], Number)
    assert load(random_model, services).complete([llm.Request("One")], Number) == [kept]
    other = load(make_random(tmp_path / "other", 2), services)
    assert other.complete([llm.Request("One")], Number)[0].value is None


def test_a_prompt_that_is_too_long_is_a_counted_failure(random_model, monkeypatch):
    monkeypatch.setattr(LocalChat, "decode_ids", lambda self, ids: '{"x": 14}')
    client = load(random_model)
    found = client.complete([llm.Request("word " * 4000), llm.Request("One")], Number)
    assert found[0].failure == "model failed"
    assert "exceed its 4096" in found[0].reason
    assert found[1].value == Number(x=14)


def test_a_model_without_a_chat_template_is_refused(random_model, tmp_path):
    import shutil

    folder = tmp_path / "plain"
    shutil.copytree(random_model, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(MetricError, match="no chat template"):
        load(folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('a system turn is needed') }}")
    with pytest.raises(MetricError, match="template fails: a system turn is needed"):
        load(folder)
