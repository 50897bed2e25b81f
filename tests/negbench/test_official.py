import pytest

from nein.datasets.negbench import official
from nein.datasets.negbench.official import write as write_csv
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION, ORIGINAL
from nein.loading.errors import UserError
from tests.negbench import conftest

MCQ = """correct_answer,caption_0,caption_1,caption_2,caption_3,correct_answer_template,image_path
0,"This image features a cup, and a dog.",h,p,n,positive,/data/coco/000000000139.jpg
0.0,This image does not feature a car.,h,p,n,negative,/data/coco/000000000139.jpg
0,"This image features a dog, but not a car.",h,p,n,hybrid,C:\\coco\\000000000285.jpg
"""
BINARY = "correct_answer,caption_0,caption_1,image_path\n"
#: As pandas writes a column of lists: their text, quotes doubled.
RETRIEVAL = """image_id,filepath,captions,positive_objects
139,/data/coco/000000000139.jpg,"[""A man's dog."", 'It\\'s a ""dog"".', 'A, b']",['dog']
285,/data/coco/000000000285.jpg,['A bear.'],[]
"""


def test_released_questions_are_read_as_they_are(tmp_path):
    (tmp_path / "a.csv").write_text(MCQ)
    found = official.read_questions(tmp_path / "a.csv")
    assert [q.type for q in found] == [AFFIRMATION, NEGATION, HYBRID]
    assert [q.correct for q in found] == [0, 0, 0]
    assert [q.id for q in found] == ["000000000139.jpg", "000000000139.jpg#2", "000000000285.jpg"]
    assert [q.source for q in found] == ["000000000139.jpg"] * 2 + ["000000000285.jpg"]
    assert found[0].options[0].text == "This image features a cup, and a dog."
    # The released table for real sets: index 1 is a hybrid, 2 an affirmation, 3 a negation.
    assert [o.template for o in found[1].options] == [NEGATION, HYBRID, AFFIRMATION, NEGATION]
    # a training question about one object
    (tmp_path / "a.csv").write_text(MCQ.replace(",positive,", ",modified_positive,"))
    assert official.read_questions(tmp_path / "a.csv")[0].type == AFFIRMATION
    # binary questions have two options and no templates
    (tmp_path / "a.csv").write_text(f"{BINARY}1,edema,no edema,p/a.jpg\n")
    (question,) = official.read_questions(tmp_path / "a.csv")
    assert (question.correct, question.type) == (1, None)
    assert [option.template for option in question.options] == [None, None]


def test_the_right_option_of_the_synthetic_set_may_stand_anywhere(tmp_path):
    # The released table has a wrong option at 0 for the synthetic set: the right one is elsewhere then.
    text = MCQ.splitlines()[0] + "\n3,a,b,c,This image does not feature a car.,negative,x.png\n"
    (tmp_path / "a.csv").write_text(text + "1,a,This image features b but not c.,c,d,hybrid,y.png\n")
    for question in official.read_questions(tmp_path / "a.csv", "synthetic"):
        assert [o.template for o in question.options] == [AFFIRMATION, HYBRID, HYBRID, NEGATION]
    other = official.read_questions(tmp_path / "a.csv", "real")
    # Nothing is published on it.
    assert [o.template for o in other[0].options] == [None, None, None, NEGATION]


def test_pictures_of_one_file_name_are_told_apart_by_their_folders(tmp_path):
    # CheXpert calls every picture view1_frontal.jpg: taken for one source, there would be no interval.
    rows = [
        f"0,edema,no edema,/data/chexpert/valid/patient{n}/study1/view1_frontal.jpg" for n in (11, 12, 12, 13)
    ]
    (tmp_path / "a.csv").write_text(BINARY + "\n".join(rows) + "\n")
    found = official.read_questions(tmp_path / "a.csv")
    first, second, third = (f"patient{n}/study1/view1_frontal.jpg" for n in (11, 12, 13))
    assert [q.source for q in found] == [first, second, second, third]
    assert [q.id for q in found] == [first, second, f"{second}#2", third]


def test_a_lost_caption_is_allowed_where_it_can_be_counted(tmp_path):
    (tmp_path / "a.csv").write_text(
        "filepath,captions\na.jpg,['A bear.']\nb.jpg,[]\nc.jpg,\"['', 'A dog.']\"\n"
    )
    found = official.read_retrieval(tmp_path / "a.csv")
    assert [item.captions for item in found] == [("A bear.",), (), ("", "A dog.")]
    with pytest.raises(UserError, match=r"item 'b.jpg' has an empty caption or none at all"):
        write_csv(tmp_path / "b.csv", found)


def test_captions_are_lists_of_literals(tmp_path):
    (tmp_path / "a.csv").write_text(RETRIEVAL)
    found = official.read_retrieval(tmp_path / "a.csv")
    assert found[0].captions == ("A man's dog.", 'It\'s a "dog".', "A, b")
    assert found[0].positives == ("dog",)
    assert found[1].positives == ()
    assert {item.kind for item in found} == {ORIGINAL}


def test_a_list_without_commas_is_refused_and_quotes_in_a_caption_are_not():
    both = """('A dog.', "No 'cat' 'dog'.")"""
    assert official.parse_strings(both, "x.csv") == ("A dog.", "No 'cat' 'dog'.")
    for cell in ("['A dog.' 'No cat.']", "['A dog.'\n '''No cat.''']", r"['It\'s' 'a','' u'd']"):
        with pytest.raises(UserError, match=r"x.csv: .* is not a list of strings"):
            official.parse_strings(cell, "x.csv")


def test_a_cell_is_never_run(tmp_path):
    target = tmp_path / "harm"
    cell = f"__import__('pathlib').Path({str(target)!r}).touch() or ['x']"
    (tmp_path / "a.csv").write_text(f'filepath,captions\na.jpg,"{cell}"\n')
    with pytest.raises(UserError, match=r"line 2, captions: .* is not a list of strings"):
        official.read_retrieval(tmp_path / "a.csv")
    assert not target.exists()


def test_what_is_written_is_read_back(tmp_path):
    asked = conftest.questions()
    write_csv(tmp_path / "q.csv", asked)
    assert official.read_questions(tmp_path / "q.csv") == asked
    _, negated = conftest.items()
    write_csv(tmp_path / "r.csv", negated)
    assert official.read_retrieval(tmp_path / "r.csv", "negated") == negated


@pytest.mark.parametrize(
    "text, said",
    [
        ("correct_answer,caption0,caption_1,image_path\n0,a,b,c\n", "no column 'caption_0'; it needs"),
        (BINARY + "2,a,b,c\n", "'2' is not the number of an option"),
        (BINARY + "x,a,b,c\n", "'x' is not the number of an option"),
        (BINARY + "0,a,b\n", "fewer cells"),
        (BINARY + "0,a,b,\n", "the column 'image_path' is empty"),
        (BINARY, "a header but no rows"),
        (BINARY + "0,\udcff\udcfe,b,c\n", "is not a CSV file in UTF-8"),
        ("", "has none"),
        (MCQ.replace("hybrid", "mixed"), "unknown template 'mixed'"),
        (BINARY + '0,a,b,"c\n', "is not a CSV file in UTF-8: unexpected"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path, text, said):
    (tmp_path / "a.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(UserError) as caught:
        official.read_questions(tmp_path / "a.csv")
    assert said in str(caught.value)
    assert "a.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
