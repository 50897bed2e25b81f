"""Prompts read from files in the form of the released scripts, here with other words; plain answers."""

import random
from collections import Counter

import pytest

from nein.datasets.negbench import sentences
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.polarity import changed
from nein.datasets.negbench.sentences import Negation
from nein.engine.errors import UserError
from nein.generate.negbench import language
from nein.generate.negbench.published import Line, ObjectList, Published, Verdict, VideoConcepts
from nein.models.llm.client import AnswerError, parse
from nein.train.clip_finetuning import table
from tests.negbench_build.test_language import BROKEN, answer, client, prompt

OBJECTS = '''
import vllm_that_is_not_here
def generate_extraction_prompt(caption):
    """Words."""
    prompt_template = f"""Things in "{caption}"?"""
    return prompt_template
def generate_negative_objects_prompt(caption, relevant_objects):
    prompt_template = f"""Things beside {relevant_objects} and not in {caption}?"""
    return prompt_template
'''
VALID = '''
def generate_prompt(objects_value, examples):
    prompt_template = f"""A list?
{examples}
{objects_value}
"""
    return prompt_template
def process_validation_task(df):
    examples = """['x']
Yes
"""
'''
NEGATE = '''
affirmation_first_examples_list = ["""Has A
Lacks B""", "a2", "a3", "a4"]
negation_first_examples_list = ["n1", "n2", "n3", "n4"]
def generate_prompt(affirmative_caption, negative_objects, examples):
    prompt_template = f"""Deny.

{examples}

{affirmative_caption} [{', '.join(negative_objects)}]
"""
    return prompt_template
'''
PARAPHRASE = '''
retrieval_examples = """retrieval words"""
mcq_examples = """question words"""
def generate_prompt(caption, examples, use_affirmation_negation_guideline):
    guidelines = """free"""
    if use_affirmation_negation_guideline:
        guidelines = """in order"""
    prompt_template = f"""Again ({guidelines}; {examples}): {caption}"""
    return prompt_template
'''
VIDEOS = '''
concepts_examples_list = ["c1", "c2", "c3", "c4"]
paraphrasing_mcq_examples_list = ["q1", "q2", "q3", "q4", "q5", "q6"]
paraphrasing_retrieval_examples_list = ["r1", "r2", "r3", "r4", "r5", "r6"]
def generate_prompt_concepts(original_captions, examples):
    prompt_template = f"""Concepts of {original_captions} ({examples})"""
    return prompt_template
def generate_prompt_paraphrasing(original_caption, examples, use_affirmation_negation_guideline):
    guidelines = "free"
    if use_affirmation_negation_guideline:
        guidelines = "in order"
    prompt_template = f"""Again ({guidelines}; {examples}): {original_caption}"""
    return prompt_template
'''


@pytest.fixture
def copy(tmp_path):
    """A folder like a copy of the released repository."""
    root = tmp_path / "copy" / "synthetic_datasets"
    for form in ("evaluation", "finetuning"):
        (root / form).mkdir(parents=True)
        (root / form / "process_caption_objects.py").write_text(OBJECTS)
        (root / form / "paraphrase_captions.py").write_text(PARAPHRASE)
    (root / "evaluation" / "process_video_tasks.py").write_text(VIDEOS)
    (root / "finetuning" / "validate_object_lists.py").write_text(VALID)
    (root / "finetuning" / "generate_negative_captions.py").write_text(NEGATE)
    return tmp_path / "copy"


def test_prompts_are_put_together_as_the_scripts_do_and_no_script_is_run(copy):
    prompts, rng = Published(copy, "training", "image"), random.Random(0)
    assert prompts.present('a "dog"') == 'Things in "a "dog""?'
    assert prompts.absent("a dog", ["dog", "it's"]) == "Things beside ['dog', \"it's\"] and not in a dog?"
    assert prompts.valid(["a", "b"]) == "A list?\n['x']\nYes\n\n['a', 'b']\n"
    for option, keep, said in (
        (False, True, "in order; retrieval"),
        (False, False, "free; retrieval"),
        (True, True, "free; question"),
    ):  # fmt: skip
        text = prompts.rephrase("A.", option=option, keep_order=keep, rng=rng)
        assert text == f"Again ({said} words): A."
    before = prompts.negate(Negation("A dog", "cat", True), random.Random(0))
    assert before.endswith("\n\nA dog [cat]\n")
    drawn = before.removeprefix("Deny.\n\n").split("\n\n")[:3]
    assert len(set(drawn)) == 3
    assert set(drawn) <= {"n1", "n2", "n3", "n4"}
    assert "a4" in prompts.negate(Negation("A dog", "cat", False), random.Random(2))
    assert len(prompts.sha256) == 64


def test_of_a_video_concepts_are_asked_for_and_all_captions_shown(copy):
    prompts = Published(copy / "synthetic_datasets", "evaluation", "video")
    asked = prompts.concepts(["a", "b"], random.Random(0))
    assert asked.startswith("Concepts of ['a', 'b'] (c")
    assert asked.count("\n\n") == 2
    again = prompts.rephrase("A.", option=True, keep_order=True, rng=random.Random(0))
    assert again.startswith("Again (in order; q")
    assert again.count("q") == 5


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("finetuning/generate_negative_captions.py", "", None, "cannot be read"),
        ("finetuning/generate_negative_captions.py", NEGATE, "def (", "is not a Python file"),
        ("finetuning/generate_negative_captions.py", "{examples}", "{other}", "has a gap that is not known"),
        ("finetuning/generate_negative_captions.py", '"n1"', "str(1)", "is not a list of texts"),
        ("finetuning/paraphrase_captions.py", "mcq_examples", "others", "has no 'mcq_examples'"),
        ("finetuning/validate_object_lists.py", "examples = ", "given = ", "has no 'examples'"),
    ],
)
def test_a_file_that_is_not_as_released_is_a_sentence(name, old, new, sentence, copy):
    path = copy / "synthetic_datasets" / name
    if new is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=sentence):
        Published(copy, "training", "image")
    with pytest.raises(UserError, match="has no folder synthetic_datasets/evaluation"):
        Published(copy / "nowhere", "training", "image")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (ObjectList, ' "dog", \'cat\', dog,, ', ["dog", "cat"]),
        (ObjectList, "dog\n\nHere are more: cat", ["dog"]),
        (ObjectList, "<think>hm, well</think>\n\ndog, cat", ["dog", "cat"]),
        (ObjectList, ' ", " ', None),
        (Line, 'Rephrased Caption: ""No dog.""\nNote: none', "No dog."),
        (Line, "Negative Caption: No dog.", "No dog."),
        (Line, '"', None),
        (Verdict, "Yes, it is.", True),
        (Verdict, "no", False),
        (Verdict, "Maybe\nYes", None),
        (VideoConcepts, "Positive1: a dog\npositive2: run\nNEGATIVE: cat", (["a dog", "run"], ["cat"])),
        (VideoConcepts, "positive1: a\npositive2:\nnegative: b", None),
    ],
)  # fmt: skip
def test_a_plain_answer_is_read_as_in_the_released_scripts(schema, text, value):
    if value is None:
        with pytest.raises(AnswerError):
            parse(text, schema)
        return
    values = tuple(parse(text, schema).model_dump().values())
    assert (values if len(values) > 1 else values[0]) == value


def speaking(body, _):
    asked = prompt(body)
    if asked.startswith("Things in"):
        return answer("Dog, unicorn" if "dog" in asked else "Sky")
    if asked.startswith("Things beside"):
        return answer("cat, dog, car, boat, kite")
    if asked.startswith("A list?"):
        return answer("No" if "Sky" in asked else "Yes")
    if asked.startswith("Deny."):
        return answer(f"Negative Caption: {asked.splitlines()[-1]} it is not.")
    return answer(asked.partition("): ")[2].replace("This image", "The fine image"))


def test_by_paper_and_by_its_prompts_negcap_is_what_the_model_says(server, negbench, coco, copy, tmp_path):
    server.rule = speaking
    given = [
        "generate", "--source", "captions", "--captions", coco / "captions.json", "--images", coco / "images",
        "--form", "training", "--concepts", "llm", "--validate", "--paraphrase", "--prompts", copy,
        "--protocol", "paper", "--llm.model", f"openai:{server.url}#eye-7b", "--llm.temperature", "0.8",
        "--retries", "0", "--device", "cpu", "--out", tmp_path / "out",
    ]  # fmt: skip
    done = negbench(*given)
    assert done.code == 0, done.stderr
    assert all("response_format" not in body for body in server.requests)
    assert all("JSON" not in prompt(body) for body in server.requests)
    warmth = {prompt(body).partition(" ")[0]: body["temperature"] for body in server.requests}
    assert (warmth["A"], warmth["Things"]) == (0, 0.8)
    assert f"unusable: {language.NO_LIST}" in done.stdout  # "Sky"
    rows = table.Captions(tmp_path / "out" / "dataset" / "negcap_rephrased.csv")
    assert Counter(item.image for item in rows)["a.png"] == 3
    said = [item.captions[0] for item in rows if item.image == "a.png"]
    assert all(text.startswith("A picture of dog and cat. [") for text in said)
    assert len(set(said)) == 3  # "cat" may be among what is denied: nothing is checked
    asked = table.Questions(tmp_path / "out" / "dataset" / "negmcq_rephrased.csv")
    assert all(option.text.startswith("The fine image") for option in asked[0].options)
    assert any("unicorn" in option.text for question in asked for option in question.options)


def extracted(server, copy, caption):
    """What becomes of an image by each protocol."""
    image, prompts = Concepts("a", "a.png", (caption,)), Published(copy, "training", "image")
    how = {"prompts": prompts}
    asked = client(server)
    return [language.extract(asked, [image], 0, 5, protocol=p, **how)[0] for p in ("paper", "fixed")]


def test_by_fixed_the_same_answers_are_checked(server, copy):
    server.rule = speaking
    paper, fixed = extracted(server, copy, "A dog and a cat")
    assert (paper.positives, fixed.positives) == (("Dog", "unicorn"), ("dog",))
    assert paper.negatives == ("cat", "dog", "car", "boat", "kite")
    assert fixed.negatives == ("car", "boat", "kite")
    server.rule = lambda body, _: answer("A dog sits.")
    negation, text = Negation("A dog", "cat", False), "A dog. There is no cat in the image."
    one = language.Sentence("a/c0", text, ["dog"], ["cat"], negation=negation)
    how = {"keep_order": False, "prompts": Published(copy, "training", "image")}
    for protocol, said in (("paper", ("A dog sits.", "")), ("fixed", (None, "an object is lost"))):
        assert language.paraphrase(client(server), [one], 0, protocol=protocol, **how) == [said]


def test_by_paper_a_caption_without_an_object_is_asked_about_as_none(server, copy):
    server.rule = lambda body, _: answer('"' if prompt(body).startswith("Things in") else "cat, car")
    paper, fixed = extracted(server, copy, "What a day")
    assert (paper.positives, paper.negatives, paper.problem) == ((), ("cat", "car"), "")
    assert "unusable (nonsense)" in fixed.problem
    question = sentences.training_question(paper, 0, protocol="paper")
    assert any("None" in option.text for option in question.options)


def test_two_concepts_and_an_absent_one_are_a_videos(server, copy):
    server.rule = lambda body, _: answer("positive1: dog\npositive2: running\nnegative: swimming")
    video = Concepts("v", "v.mp4", ("A dog is running", "a dog"))
    prompts = Published(copy, "evaluation", "video")
    (seen,) = language.extract(client(server), [video], 0, 1, "video", prompts=prompts, protocol="paper")
    assert (seen.positives, seen.negatives) == (("dog", "running"), ("swimming",))


@pytest.mark.parametrize("first", ["affirmation", "negation"])
def test_our_own_examples_pass_our_own_check(first):
    affirmed = {"wheelbarrow": "ladder", "fork": "pancakes", "seagull": "boat", "window": "clock"}
    for description, absent, caption in language.EXAMPLES[first]:
        template = Negation(description, absent, first == "negation").text("image", "where missing")
        assert not changed(caption, [affirmed[absent]], [absent], keep_order_of=template), caption


def test_what_is_no_list_of_objects_is_dropped_and_silence_is_asked_again(server):
    server.rule = lambda body, _: (
        BROKEN if "silent" in prompt(body) else answer({"valid": "Note:" not in prompt(body)})
    )
    lists = [("dog",), ("Note: a dog",), ("silent",)]
    images = [Concepts(f"{k}", "p", ("A",), names, ("cat",)) for k, names in enumerate(lists)]
    found = language.validate(client(server), [*images, Concepts("x", problem="y")])
    fine, bad, silent, before = (image.problem for image in found)
    assert (fine, bad, before) == ("", language.NO_LIST, "y")
    assert silent.startswith(language.NO_ANSWER)
