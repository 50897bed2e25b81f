"""A tiny language model of transformers, with a tokenizer and a chat template."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.metrics.tiny import seeded, speaking, tokenizer

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}\nAnswer:{% endif %}"
)


def make_random(folder, seed=1):
    words = tokenizer([], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=4096)
    words.chat_template = TEMPLATE
    with seeded(seed):
        model = LlamaForCausalLM(LlamaConfig(**speaking(words), max_position_embeddings=4096))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("llm") / "random")
