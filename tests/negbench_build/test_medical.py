from collections import Counter

import pandas as pd
import pytest
from PIL import Image

from nein.datasets.negbench import loading, official, sentences
from nein.datasets.negbench.records import TEMPLATES
from nein.datasets.negbench.sentences import Concepts
from nein.generate.config import NegbenchConfig
from nein.generate.negbench import files, stages
from nein.generate.negbench.language import parse_option
from nein.loading.errors import UserError

HEADER = (
    "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,Cardiomegaly,Lung Opacity,"
    "Lung Lesion,Edema,Consolidation,Pneumonia,Atelectasis,Pneumothorax,Pleural Effusion,Pleural Other,"
    "Fracture,Support Devices"
)
#: Rows in the form of valid.csv (all labels given) and of train.csv (mostly not mentioned, -1 uncertain).
CHEXPERT = f"""{HEADER}
CheXpert-v1.0-small/valid/patient64541/study1/view1_frontal.jpg,Male,73,Frontal,AP,0.0,1.0,1.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0
CheXpert-v1.0-small/valid/patient64541/study1/view2_lateral.jpg,Male,73,Lateral,,0.0,0.0,1.0,0.0,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0
CheXpert-v1.0-small/valid/patient64542/study1/view1_frontal.jpg,Male,70,Frontal,PA,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0
CheXpert-v1.0-small/train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,,,1.0,-1.0,,,,,0.0,0.0,,,,
"""
HAM10000 = """lesion_id,image_id,dx,dx_type,age,sex,localization
HAM_0000118,ISIC_0027419,bkl,histo,80.0,male,scalp
HAM_0000118,ISIC_0025030,bkl,histo,80.0,male,scalp
HAM_0002730,ISIC_0026769,nv,histo,,unknown,unknown
"""


def test_chexperts_table_is_read_as_published(tmp_path):
    (tmp_path / "valid.csv").write_text(CHEXPERT)
    first, second, healthy, early = files.read_chexpert(tmp_path / "valid.csv", 3)
    assert first.path == "CheXpert-v1.0-small/valid/patient64541/study1/view1_frontal.jpg"
    assert first.id == first.path.removesuffix(".jpg")
    assert first.positives == ("enlarged cardiomediastinum", "cardiomegaly", "lung opacity")
    assert first.negatives == ("edema",)  # seen with cardiomegaly; the others are with nothing that it shows
    assert first.source_id == second.source_id == "patient64541"
    assert healthy.problem == files.NO_FINDING
    assert early.positives == ("cardiomegaly",)
    assert early.negatives == ()  # lung opacity is uncertain, edema not mentioned: neither is absent
    assert {"lung opacity", "edema"} <= set(early.unsure)
    # the test set's labels stand without a patient's particulars
    frame = pd.read_csv(tmp_path / "valid.csv")
    frame.drop(columns=["Sex", "Age", "Frontal/Lateral", "AP/PA"]).to_csv(tmp_path / "test.csv", index=False)
    assert next(c.positives for c in files.read_chexpert(tmp_path / "test.csv", 3)) == first.positives


def test_ham10000s_table_is_read_as_published(tmp_path):
    (tmp_path / "HAM10000_metadata").write_text(HAM10000.replace(",", "\t"))
    first, second, third = files.read_ham10000(tmp_path / "HAM10000_metadata", 3)
    assert (first.id, first.path) == ("ISIC_0027419", "ISIC_0027419.jpg")
    assert first.positives == ("benign keratosis",)
    assert first.source_id == second.source_id == "HAM_0000118"
    assert third.positives == ("melanocytic nevus",)
    assert len(third.negatives) == 6
    assert "melanocytic nevus" not in third.negatives


@pytest.mark.parametrize(
    ("source", "old", "new", "sentence"),
    [
        ("chexpert", "1.0,1.0,1.0", "1.0,2.0,1.0", "line 2, Cardiomegaly: '2.0' is not a label"),
        ("chexpert", "Cardiomegaly", "Heart", "no column 'Cardiomegaly'"),
        ("ham10000", ",nv,", ",nevus,", "line 4, dx: 'nevus' is not a diagnosis; allowed: akiec"),
        ("ham10000", "ISIC_0026769", "", "line 4: the column 'image_id' is empty"),
    ],
)
def test_a_table_that_is_not_as_published_is_a_sentence(source, old, new, sentence, tmp_path):
    text = {"chexpert": CHEXPERT, "ham10000": HAM10000}[source]
    (tmp_path / "t.csv").write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=sentence):
        files.load_images(NegbenchConfig(source=source, instances=str(tmp_path / "t.csv")))


def true(text, image):
    affirmed, denied = parse_option(text, "code", "image")
    return set(affirmed) <= set(image.positives) and set(denied) <= set(image.negatives)


def test_of_the_options_of_every_medical_task_the_first_alone_is_true():
    absent = ("edema", "fracture", "pneumonia", "atelectasis")
    forms = Counter[str]()
    for number in range(120):
        image = Concepts(f"{number}", "p", (), ("cardiomegaly",), absent)
        asked = sentences.make_medical_questions(image, 0)
        assert [*asked] == ["binary_mcq", "binary_mcq_control", "mcq_control"]
        assert [len(question.options) for question in asked.values()] == [2, 2, 4]
        for question in asked.values():
            assert [true(option.text, image) for option in question.options] == [
                k == 0 for k in range(len(question.options))
            ]
        controls = (*asked["binary_mcq_control"].options, *asked["mcq_control"].options)
        assert not any("not" in option.text for option in controls)
        forms[asked["binary_mcq"].options[0].text.split()[2]] += 1
    assert set(forms) == {"features", "does"}
    assert min(forms.values()) > 35  # evenly, to more than four standard deviations
    assert "mcq_control" not in sentences.make_medical_questions(Concepts("i", "p", (), ("a",), ("b",)), 0)
    assert sentences.make_medical_questions(Concepts("i", "p", (), ("a",), ()), 0) == {}


@pytest.mark.parametrize(
    ("shown", "unsure", "binary", "control"),
    [
        (("lung opacity",), (), "shows Lung Opacity", "shows Lung Opacity"),
        (("atelectasis",), (), "does not show Lung Opacity", "shows Atelectasis"),
        (("lung opacity", "atelectasis"), (), "shows Lung Opacity", None),
        (("edema",), (), "does not show Lung Opacity", None),
        (("edema",), ("lung opacity",), None, None),
        (("lung opacity",), ("atelectasis",), "shows Lung Opacity", None),
    ],
)
def test_by_paper_binary_questions_are_about_its_conditions_with_its_verb(shown, unsure, binary, control):
    image = Concepts("i", "p", (), shown, ("fracture",), unsure)
    asked = sentences.make_medical_questions(image, 0, conditions=stages.CONDITIONS)
    right = {task: question.options[0].text.removeprefix("This image ") for task, question in asked.items()}
    assert (right.get("binary_mcq"), right.get("binary_mcq_control")) == (binary, control)
    for question in asked.values():
        assert len({option.text for option in question.options}) == 2


def written(folder, source):
    """The table of 24 pictures, which are all black."""
    if source == "chexpert":
        table = folder / "valid.csv"
        names = [f"valid/patient{k // 2}/study1/view{k % 2 + 1}_frontal.jpg" for k in range(24)]
        lines = [HEADER]
        for k, name in enumerate(names):
            labels = [float(place in (k % 13, (k + 3) % 13 * (k % 2))) for place in range(13)]
            lines.append(f"CheXpert-v1.0-small/{name},Male,73,Frontal,AP,0.0,{','.join(map(str, labels))}")
    else:
        table, codes = folder / "HAM10000_metadata.csv", [*files.DIAGNOSES]
        names = [f"HAM10000_images_part_1/ISIC_{k}.jpg" for k in range(24)]
        lines = [HAM10000.splitlines()[0]]
        lines += [f"HAM_{k},ISIC_{k},{codes[k % 7]},histo,45.0,male,back" for k in range(24)]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64)).save(folder / name)
    table.write_text("\n".join(lines) + "\n")
    return table


@pytest.mark.parametrize("source", ["chexpert", "ham10000"])
def test_a_medical_table_becomes_files_that_evaluation_reads(source, negbench, tmp_path):
    table = written(tmp_path, source)
    given = ["generate", "--source", source, "--instances", str(table), "--device", "cpu"]
    done = negbench(*given, "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    dataset = tmp_path / "out" / "dataset"
    (data,) = loading.load(str(dataset), image_roots=[str(table.parent)])
    assert {task.name for task in data.tasks} == {
        "own/mcq", "own/mcq-control", "own/binary", "own/binary-control",
    }  # fmt: skip
    assert data.media.frames(data.references[0])[0].shape == (64, 64, 3)
    for name, count in (("binary_mcq.csv", 2), ("binary_mcq_control.csv", 2), ("mcq_control.csv", 4)):
        frame = pd.read_csv(dataset / name)  # what CsvBinaryMCQDataset and CsvMCQDataset read by name
        assert set(frame["correct_answer"]) == {0}
        assert frame[[*(f"caption_{k}" for k in range(count)), "image_path"]].notna().all(axis=None)
    assert all(q.type in TEMPLATES for q in official.read_questions(dataset / "mcq.csv"))
    refused = negbench(*given, "--form", "training", "--out", tmp_path / "other")
    assert refused.code == 2
    assert "is for evaluation" in refused.stderr
