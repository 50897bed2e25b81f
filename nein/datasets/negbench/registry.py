"""Lists the data sets of NegBench and of other tests (`ROWS`): tasks, files, and where to get them.

Sources: github.com/m1k2zoo/negbench @ 2ac009b (datasets.md, benchmarks/src/training/params.py); for the other
tests, the repositories that their rows name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CSV_FILES = (
    "the CSV files are at https://drive.google.com/drive/folders/1kSEq0mkV1t1T8GuOAM65iz_iAA7e5gxB "
    "(linked from github.com/m1k2zoo/negbench)"
)
NEGBENCH = "NegBench"
RETRIEVAL, MCQ, BINARY = "retrieval", "mcq", "binary"  # tasks of NegBench
#: Tasks of other tests: choose a caption, a region, a caption or an image of a pair, an answer.
CAPTION, REGION, PAIRS, YES_NO = "caption", "region", "pairs", "yes-no"
AFFIRMED = "-control"  # suffix of a task's control, which has the same form without any negation
# Wordings of the captions ("variants").
TEMPLATED, REPHRASED, PUBLISHED = "templated", "rephrased", "published"
NANO = "nano"


@dataclass(frozen=True)
class Part:
    """One task of a data set in one wording, and its file."""

    task: str
    variant: str
    files: tuple[str, ...]  # released names; the first one that exists is read
    negated: tuple[str, ...] = ()  # retrieval: names of the file with negated captions
    reader: str = ""  # key of `other_tests.READERS`, or "simpleneg"; "": NegBench's layout

    @property
    def judged(self) -> bool:
        """Whether no image is known to be right, so that a judge decides."""
        return self.task == RETRIEVAL and bool(self.reader)


@dataclass(frozen=True)
class Row:
    """A data set or another test, and where its images and files are."""

    name: str
    title: str
    images: str  # source of its images or videos
    parts: tuple[Part, ...]
    layout: str = "real"  # or "synthetic" (`official.POSITIONS`)
    #: Task -> rows of each of its files, as published. Table 2 of the paper counts both wordings; its rows
    #: add up to 79,549 (printed: 79,239). HardNeg-Syn's paraphrased captions have no file.
    sizes: Mapping[str, int] = field(default_factory=dict)
    files_at: str = CSV_FILES  # where to get the files
    suite: str = NEGBENCH  # benchmark or paper that it belongs to
    licence: str = "see there"  # of the files
    by_name: bool = False  # read only if it is named, because other sets have files of the same names


_COCO = "val2017.zip of https://cocodataset.org/#download"
_VTT = "the MSR-VTT videos, https://www.mediafire.com/folder/h14iarbs62e7p/shared"
_NEIN = ("val.json", "train.json", "dev.json")


def _make_pair(task: str, name: str, rephrased: str) -> tuple[Part, Part]:
    """A task in both wordings."""
    return Part(task, TEMPLATED, (name,)), Part(task, REPHRASED, (rephrased,))


def _make_retrieval(
    name: str, templated: tuple[str, ...], rephrased: tuple[str, ...] = ()
) -> tuple[Part, ...]:
    """Retrieval in one or both wordings. name: the file of original captions; the others: of negated ones."""
    variants = ((TEMPLATED, templated), (REPHRASED, rephrased))
    return tuple(Part(RETRIEVAL, variant, (name,), negated) for variant, negated in variants if negated)


_TABLE = (
    Row("coco", "COCO", _COCO, sizes={RETRIEVAL: 5000, MCQ: 5914}, parts=(
        *_make_retrieval(
            "COCO_val_retrieval.csv", ("COCO_val_negated_retrieval.csv",),
            ("COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv",),
        ),
        *_make_pair(MCQ, "COCO_val_mcq.csv", "COCO_val_mcq_llama3.1_rephrased.csv"),
    )),
    Row("voc2007", "VOC2007", "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/VOCtest_06-Nov-2007.tar",
        _make_pair(MCQ, "VOC2007_mcq.csv", "VOC2007_mcq_llama3.1_rephrased.csv"),
        sizes={MCQ: 5031}),  # Table 2 counts 5,032
    Row("hardneg-syn", "HardNeg-Syn",
        "the pictures of HardNeg-Syn, not released so far; `nein negbench generate` makes such pairs",
        layout="synthetic", sizes={RETRIEVAL: 10_000, MCQ: 10_000}, parts=(
        *_make_retrieval("synthetic_retrieval_v1.csv", ("synthetic_retrieval_v2.csv",)),
        *_make_pair(MCQ, "synthetic_mcq.csv", "synthetic_mcq_llama3.1_rephrased.csv"),
    )),
    Row("msr-vtt", "MSR-VTT", _VTT, sizes={RETRIEVAL: 1000, MCQ: 1000}, parts=(
        *_make_retrieval(
            "msr_vtt_retrieval.csv",
            ("msr_vtt_retrieval_templated_llama.csv", "msr_vtt_retrieval_templated.csv"),
            ("msr_vtt_retrieval_rephrased_llama.csv", "msr_vtt_retrieval_rephrased.csv"),
        ),
        Part(MCQ, TEMPLATED, ("msr_vtt_mcq_templated_llama.csv", "msr_vtt_mcq_templated.csv")),
        Part(MCQ, REPHRASED, ("msr_vtt_mcq_rephrased_llama.csv", "msr_vtt_mcq_rephrased.csv")),
    )),
    Row("chexpert", "CheXpert", "CheXpert, on request, https://stanfordmlgroup.github.io/competitions/chexpert",
        sizes={MCQ: 1587, MCQ + AFFIRMED: 690, BINARY: 690, BINARY + AFFIRMED: 690}, parts=(
        Part(MCQ, TEMPLATED, ("chexpert_mcq.csv",)),
        Part(MCQ + AFFIRMED, TEMPLATED, ("chexpert_mcq_no_negation.csv",)),
        Part(BINARY, TEMPLATED, ("chexpert_binary_mcq.csv", "chexpert_binary_mcq_random.csv")),
        Part(BINARY + AFFIRMED, TEMPLATED,
             ("chexpert_binary_mcq_control.csv", "chexpert_binary_mcq_no_negation.csv",
              "chexpert_binary_mcq_no_negation_random.csv")),
    )),
    Row("ham10000", "HAM10000", "HAM10000, https://doi.org/10.7910/DVN/DBW86T", (
        Part(MCQ, TEMPLATED, ("ham10000_mcq.csv",)),
        Part(MCQ + AFFIRMED, TEMPLATED, ("ham10000_mcq_no_negation.csv",)),
    )),
    Row("own", "own data",
        "wherever the set was built (`nein negbench generate` keeps them beside the files)", (
        *_make_retrieval("retrieval.csv", ("negated_retrieval.csv",), ("negated_retrieval_rephrased.csv",)),
        *_make_pair(MCQ, "mcq.csv", "mcq_rephrased.csv"),
        Part(MCQ + AFFIRMED, TEMPLATED, ("mcq_control.csv",)),
        Part(BINARY, TEMPLATED, ("binary_mcq.csv",)),
        Part(BINARY + AFFIRMED, TEMPLATED, ("binary_mcq_control.csv",)),
    )),
    Row("valse", "VALSE existence", "Visual7W, http://ai.stanford.edu/~yukez/visual7w",
        (Part(CAPTION, PUBLISHED, ("existence.json",), reader="valse"),),
        files_at="data/existence.json of github.com/Heidelberg-NLP/VALSE",
        suite="Parcalabescu et al., ACL 2022", licence="MIT"),
    Row("cc-neg", "CC-Neg",
        "ccneg_images.zip, linked from github.com/jaisidhsingh/CoN-CLIP (ccneg_dataset/README.md)",
        (Part(CAPTION, PUBLISHED, ("ccneg_preprocessed.pt",), reader="cc-neg"),),
        files_at="ccneg_preprocessed.pt, linked from github.com/jaisidhsingh/CoN-CLIP",
        suite="Singh et al., WACV 2025", licence="MIT"),
    Row("sugarcrepe", "SugarCrepe, negation", _COCO,
        (Part(CAPTION, PUBLISHED, ("replace_rel.json",), reader="sugarcrepe"),),
        files_at="data/replace_rel.json of github.com/RAIVNLab/sugar-crepe",
        suite="Hsieh et al., NeurIPS 2023", licence="MIT"),
    Row("negrefcocog", "NegRefCOCOg", "train2014.zip of https://cocodataset.org/#download",
        (Part(REGION, PUBLISHED, ("NegRefCOCOg.json",), reader="negrefcocog"),),
        files_at="NegRefCOCOg/NegRefCOCOg.json of github.com/parkquasar/NegationCLIP",
        suite="Park et al., ICCV 2025", licence="MIT"),
    Row("beaf", "BEAF", "the original and manipulated images, linked from github.com/postech-ami/BEAF",
        files_at="beaf_qna.json of github.com/postech-ami/BEAF",
        suite="Ye-Bin et al., ECCV 2024", licence="none stated", parts=(
        Part(YES_NO, PUBLISHED, ("beaf_qna.json",), reader="beaf"),
        Part(PAIRS, TEMPLATED, ("beaf_qna.json",), reader="beaf-pairs"),
        Part(YES_NO, TEMPLATED, ("beaf_qna.json",), reader="beaf-pairs-asked"),
    )),
    Row("naturalbench", "NaturalBench, negation",
        "NaturalBench-Retrieval.zip and the images of huggingface.co/datasets/BaiqiL/NaturalBench",
        files_at="github.com/Baiqi-Li/NaturalBench and huggingface.co/datasets/BaiqiL/NaturalBench",
        suite="Li et al., NeurIPS 2024", licence="Apache-2.0", parts=(
        Part(YES_NO, PUBLISHED, ("dataset_split_for_finetuning/test_set.json",), reader="naturalbench"),
        Part(PAIRS, PUBLISHED, ("NaturalBench-Retrieval/metadata.json",), reader="naturalbench-pairs"),
    )),
    Row("nein", "NeIn pairs", "the folders beside it", files_at="linked from github.com/tanbuinhat/NeIn",
        suite="Bui et al., CVPRW 2025", by_name=True, parts=(
        Part(PAIRS, TEMPLATED, _NEIN, reader="nein"),
        Part(YES_NO, TEMPLATED, _NEIN, reader="nein-asked"),
    )),
    Row("simpleneg", "SimpleNeg",
        "any folder of pictures; published with the first 25,000 of COCO's val2014.zip",
        (Part(RETRIEVAL, PUBLISHED, ("simpleneg.json",), reader="simpleneg"),),
        files_at="data/simpleneg.json of github.com/fawazsammani/negation-steering",
        suite="Sammani et al., CVPR Workshops 2026", licence="none stated", by_name=True),
    Row("scope", "negation in scope", "drawn on first use", files_at="drawn on first use: --data nano",
        suite="with known truth", licence="Apache-2.0", parts=(
        Part(PAIRS, TEMPLATED, ("scope.json",), reader="scope"),
        Part(YES_NO, TEMPLATED, ("scope.json",), reader="scope-asked"),
    )),
)  # fmt: skip
ROWS = {row.name: row for row in _TABLE}
TASKS = (RETRIEVAL, MCQ, MCQ + AFFIRMED, BINARY, BINARY + AFFIRMED, CAPTION, REGION, PAIRS, YES_NO)
VARIANTS = (TEMPLATED, REPHRASED, PUBLISHED)
