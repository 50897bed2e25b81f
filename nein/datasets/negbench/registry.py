"""NegBench's data sets by name: which files they are, how wrong options were made, where pictures come from.

File names are the released ones; where a set was released under several, they are tried in order. Sources:
github.com/m1k2zoo/negbench @ 2ac009b (datasets.md, benchmarks/src/training/params.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

CSV_FILES = (
    "the CSV files are at https://drive.google.com/drive/folders/1kSEq0mkV1t1T8GuOAM65iz_iAA7e5gxB "
    "(linked from github.com/m1k2zoo/negbench)"
)
RETRIEVAL, MCQ, BINARY = "retrieval", "mcq", "binary"
AFFIRMED = "-control"  # tasks of the same form without any negation: the control of the medical sets
TEMPLATED, REPHRASED = "templated", "rephrased"


@dataclass(frozen=True)
class Part:
    """One task of a data set in one wording.

    task      "retrieval", "mcq", "binary", "mcq-control" or "binary-control".
    variant   "templated", or "rephrased" by a language model.
    files     Released names, the first that is there is read. For retrieval: original captions.
    negated   For retrieval: released names of the file with negated captions. (Those that contain "templated"
              occur in the released code; whether the files are given out is not known.)
    """

    task: str
    variant: str
    files: tuple[str, ...]
    negated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A data set.

    title     As tables show it.
    pictures  Where its pictures or videos come from.
    layout    "real" or "synthetic" (`official.POSITIONS`).
    sha256    File name -> SHA-256 of the released file, where known.
    """

    name: str
    title: str
    pictures: str
    parts: tuple[Part, ...]
    layout: str = "real"
    sha256: dict[str, str] = field(default_factory=dict)


_COCO = "val2017.zip of https://cocodataset.org/#download"
_VOC = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/VOCtest_06-Nov-2007.tar"
_VTT = "the MSR-VTT videos, https://www.mediafire.com/folder/h14iarbs62e7p/shared"
_XRAY = "CheXpert, on request, https://stanfordmlgroup.github.io/competitions/chexpert"
_SKIN = "HAM10000, https://doi.org/10.7910/DVN/DBW86T"

ROWS: dict[str, Row] = {
    row.name: row
    for row in (
        Row(
            "coco",
            "COCO",
            _COCO,
            (
                Part(RETRIEVAL, TEMPLATED, ("COCO_val_retrieval.csv",), ("COCO_val_negated_retrieval.csv",)),
                Part(
                    RETRIEVAL,
                    REPHRASED,
                    ("COCO_val_retrieval.csv",),
                    ("COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv",),
                ),
                Part(MCQ, TEMPLATED, ("COCO_val_mcq.csv",)),
                Part(MCQ, REPHRASED, ("COCO_val_mcq_llama3.1_rephrased.csv",)),
            ),
        ),
        Row(
            "voc2007",
            "VOC2007",
            _VOC,
            (
                Part(MCQ, TEMPLATED, ("VOC2007_mcq.csv",)),
                Part(MCQ, REPHRASED, ("VOC2007_mcq_llama3.1_rephrased.csv",)),
            ),
        ),
        Row(
            "hardneg-syn",
            "HardNeg-Syn",
            "the pictures of HardNeg-Syn, not released so far; `nein negbench generate` makes such pairs",
            (
                Part(RETRIEVAL, TEMPLATED, ("synthetic_retrieval_v1.csv",), ("synthetic_retrieval_v2.csv",)),
                Part(MCQ, TEMPLATED, ("synthetic_mcq.csv",)),
                Part(MCQ, REPHRASED, ("synthetic_mcq_llama3.1_rephrased.csv",)),
            ),
            "synthetic",
        ),
        Row(
            "msr-vtt",
            "MSR-VTT",
            _VTT,
            (
                Part(
                    RETRIEVAL,
                    TEMPLATED,
                    ("msr_vtt_retrieval.csv",),
                    ("msr_vtt_retrieval_templated_llama.csv", "msr_vtt_retrieval_templated.csv"),
                ),
                Part(
                    RETRIEVAL,
                    REPHRASED,
                    ("msr_vtt_retrieval.csv",),
                    ("msr_vtt_retrieval_rephrased_llama.csv", "msr_vtt_retrieval_rephrased.csv"),
                ),
                Part(MCQ, TEMPLATED, ("msr_vtt_mcq_templated_llama.csv", "msr_vtt_mcq_templated.csv")),
                Part(MCQ, REPHRASED, ("msr_vtt_mcq_rephrased_llama.csv", "msr_vtt_mcq_rephrased.csv")),
            ),
        ),
        Row(
            "chexpert",
            "CheXpert",
            _XRAY,
            (
                Part(MCQ, TEMPLATED, ("chexpert_mcq.csv",)),
                Part(MCQ + AFFIRMED, TEMPLATED, ("chexpert_mcq_no_negation.csv",)),
                Part(BINARY, TEMPLATED, ("chexpert_binary_mcq.csv", "chexpert_binary_mcq_random.csv")),
                Part(
                    BINARY + AFFIRMED,
                    TEMPLATED,
                    (
                        "chexpert_binary_mcq_control.csv",
                        "chexpert_binary_mcq_no_negation.csv",
                        "chexpert_binary_mcq_no_negation_random.csv",
                    ),
                ),
            ),
        ),
        Row(
            "ham10000",
            "HAM10000",
            _SKIN,
            (
                Part(MCQ, TEMPLATED, ("ham10000_mcq.csv",)),
                Part(MCQ + AFFIRMED, TEMPLATED, ("ham10000_mcq_no_negation.csv",)),
            ),
        ),
        Row(
            "own",
            "own data",
            "wherever the set was built (`nein negbench generate` keeps them beside the files)",
            (
                Part(RETRIEVAL, TEMPLATED, ("retrieval.csv",), ("negated_retrieval.csv",)),
                Part(RETRIEVAL, REPHRASED, ("retrieval.csv",), ("negated_retrieval_rephrased.csv",)),
                Part(MCQ, TEMPLATED, ("mcq.csv",)),
                Part(MCQ, REPHRASED, ("mcq_rephrased.csv",)),
                Part(MCQ + AFFIRMED, TEMPLATED, ("mcq_control.csv",)),
                Part(BINARY, TEMPLATED, ("binary_mcq.csv",)),
                Part(BINARY + AFFIRMED, TEMPLATED, ("binary_mcq_control.csv",)),
            ),
        ),
    )
}
TASKS = (RETRIEVAL, MCQ, MCQ + AFFIRMED, BINARY, BINARY + AFFIRMED)
VARIANTS = (TEMPLATED, REPHRASED)
NANO = "nano"
