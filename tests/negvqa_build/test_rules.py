import pytest

from nein.generate.negvqa.rules import Refusal, negate

#: Question -> its negation.
ACCEPTED = {
    # The wh-phrase is the subject.
    "What is on the table?": "What is not on the table?",
    "What can be seen in the image?": "What cannot be seen in the image?",
    "Which of the following is true?": "Which of the following is not true?",
    "Whose hat is red?": "Whose hat is not red?",
    "What's in the box?": "What's not in the box?",
    "Which is taller, the tree or the house?": "Which is not taller, the tree or the house?",
    # The same with a verb that needs "do".
    "Which animal eats grass?": "Which animal does not eat grass?",
    "Who wrote this book?": "Who did not write this book?",
    "Which statement best describes the picture?": "Which statement does not best describe the picture?",
    "Which country had the highest GDP in 2010?": "Which country did not have the highest GDP in 2010?",
    # Before the main verb.
    "What is the man holding?": "What is the man not holding?",
    "What's the man doing?": "What's the man not doing?",
    "What is the man most likely doing?": "What is the man most likely not doing?",
    "What is the woman wearing on her head?": "What is the woman not wearing on her head?",
    "What does the sign say?": "What does the sign not say?",
    "What does the man in the blue jacket have?": "What does the man in the blue jacket not have?",
    "What has the man been doing?": "What has the man not been doing?",
    "Where was this photo taken?": "Where was this photo not taken?",
    "In which city was this picture taken?": "In which city was this picture not taken?",
    # A noun phrase behind "be".
    "What is the title of this book?": "What is not the title of this book?",
    "Which city is the capital of France?": "Which city is not the capital of France?",
    "What is the color of the umbrella that the woman is holding?": (
        "What is not the color of the umbrella that the woman is holding?"
    ),
    "What color is the car?": "What color is the car not?",
    "What color is the car on the left?": "What color isn't the car on the left?",
    "What kind of animal is this?": "What kind of animal is this not?",
    "Where is the man in the hat?": "Where isn't the man in the hat?",
    "On which side of the picture is the dog?": "On which side of the picture is the dog not?",
    "Which room is the cat in?": "Which room is the cat not in?",
    # How many.
    "How many dogs are there?": "What is not the number of dogs?",
    "How many dogs are there in the picture?": "What is not the number of dogs in the picture?",
    "How many people are wearing hats?": "What is not the number of people that are wearing hats?",
    "How many of the people wear glasses?": "What is not the number of the people that wear glasses?",
    # Background and conditions stay as they are.
    "The train left at noon. What was its goal?": "The train left at noon. What was not its goal?",
    "If the red block is removed, what falls down?": "If the red block is removed, what does not fall down?",
    "What would happen if the sun disappeared?": "What would not happen if the sun disappeared?",
    "Based on the chart, what is the value of the blue bar?": (
        "Based on the chart, what is not the value of the blue bar?"
    ),
}

#: Question -> part of the reason why it is left alone.
REFUSED = {
    "Is there a dog?": "no wh-question",
    "Why is the man running?": "'why'",
    "How is the weather?": "'how'",
    "What is not in the picture?": "negative already",
    "What is missing in the picture?": "negative already",
    "What is on the plate except for the bread?": "negative already",
    "What is everyone looking at?": "'everyone'",
    "What else is on the table?": "'else'",
    "What do both pictures show?": "'both'",
    "What is the man doing and what is he holding?": "more than one wh-word",
    "What is the man doing? Where is he?": "more than one question",
    "What do you think the man is doing?": "embedded clause",
    "Can you tell me what the man is holding?": "not at the beginning",
    "Name the animal in the picture.": "question mark",
    "What is the man reading and eating?": "verbs side by side",
    "What is the animal standing on the left?": "belongs to the subject",
    "What is this animal called?": "belongs to the subject",
    "What is the man that wears a hat holding?": "clause",
    "What percentage of people voted for Obama?": "share",
    "How many birds does the man have?": "not the subject",
    "How many are there?": "how many of what",
    "What is $x^2$?": "formulas",
    "What is there in the box?": "'there'",
    "What do the people that eat fish look like?": "not where it is expected",
    "What does the animal that eats fish look like?": "clause",
}


@pytest.fixture(scope="module")
def outcomes():
    questions = [*ACCEPTED, *REFUSED]
    return dict(zip(questions, negate(questions), strict=True))


@pytest.mark.parametrize("question", ACCEPTED)
def test_a_question_within_the_scope_is_negated_word_for_word(outcomes, question):
    assert outcomes[question] == ACCEPTED[question]


@pytest.mark.parametrize("question", REFUSED)
def test_a_question_outside_the_scope_is_refused_with_the_reason(outcomes, question):
    found = outcomes[question]
    assert isinstance(found, Refusal), found
    assert REFUSED[question] in str(found)


def test_every_question_about_the_nano_scenes_is_covered():
    from nein.nano.sentences import WORDINGS

    questions = [
        original.format(thing=thing, side=side)
        for pairs in WORDINGS.values()
        for original, _ in pairs
        for thing in ("cat", "fire hydrant")
        for side in ("to the left of", "above")
    ]
    found = negate(questions)
    assert not [(q, str(n)) for q, n in zip(questions, found, strict=True) if isinstance(n, Refusal)]
