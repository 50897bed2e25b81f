"""Tiny language models of transformers, with a tokenizer and a chat template each."""

import itertools

import pytest

from tests.metrics.tiny import seeded, tokenizer

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}\nAnswer:{% endif %}"
)


def make_random(folder):
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer([], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=4096)
    words.chat_template = TEMPLATE
    with seeded(1):
        model = LlamaForCausalLM(_config(LlamaConfig, words, hidden_size=32, initializer_range=0.3))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def make_chain(folder, text):
    """A Llama that says `text` after a prompt that ends in ":": its head leads every token to the next."""
    from transformers import LlamaConfig, LlamaForCausalLM

    words = tokenizer([], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=4096)
    words.chat_template = TEMPLATE
    words.add_tokens(['{"x":'])
    size = len(words)
    with seeded(0):
        model = LlamaForCausalLM(_config(LlamaConfig, words, hidden_size=size + -size % 4))
    state = model.state_dict()
    for name, value in state.items():
        if "proj" in name:
            value.zero_()
    state["model.embed_tokens.weight"].zero_().fill_diagonal_(1.0)
    head = state["lm_head.weight"].zero_()
    chain = [
        words.encode(":", add_special_tokens=False)[-1],
        *words.encode(text, add_special_tokens=False),
        words.eos_token_id,
    ]
    assert len(set(chain)) == len(chain), "a chain cannot pass a token twice"
    for here, there in itertools.pairwise(chain):
        head[there, here] = 1.0
    model.load_state_dict(state)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def _config(cls, words, **options):
    return cls(
        vocab_size=len(words), intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id, **options,
    )  # fmt: skip


@pytest.fixture(scope="session")
def random_model(tmp_path_factory):
    return make_random(tmp_path_factory.mktemp("llm") / "random")


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory):
    return make_chain(tmp_path_factory.mktemp("llm") / "chain", '{"x":14}')
