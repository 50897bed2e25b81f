"""What a judge of edits prefers on drawn edits of known truth, by what the wrong edit did and what is new.

    python -m benchmarks.reward [--judge matching:nano:reward] [--scenes 150]

Scenes of the evaluation split, six edits of each; a judge is told to remove something, as
`research.nano.reward` words it, and is right where the edit that obeys has the higher score.
Prints a table in Markdown. Results: docs/explanation/findings.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from nein import metrics, statistics
from nein.metrics.rewards import RewardJudge
from nein.nano.scenes import TAUGHT, WORLDS, render, rng_for
from research.nano import reward

#: What the wrong edit did -> its places among the edits (the one that obeys is none of them).
WRONG = {
    "did nothing": (reward.SAME,),
    "took another out": (reward.NO_FIRST, reward.NO_SECOND),
    "took another along": (reward.NEITHER,),
    "added one more": (reward.ANOTHER,),
    "added another thing": (reward.THIRD,),
}
ROWS = (*reward.GRADED, ("style", "nano:style", TAUGHT))


def shares(judge: RewardJudge, label: str, world: str, wording: str | None, scenes: int) -> dict[str, str]:
    """What the wrong edit did -> how often the judge prefers the right one, with its interval."""
    right: dict[str, dict[int, float]] = defaultdict(dict)
    for index in range(scenes):
        one = reward.drawn("val", index, WORLDS[world])
        asked = reward.asked(rng_for("val", index, label), one, WORLDS[world], wording)
        if asked is None or asked.right not in (reward.NO_FIRST, reward.NO_SECOND):
            continue
        pictures = [render(scene, WORLDS[world].style) for scene in one.edits]
        said = judge.score([pictures[0]] * 6, pictures, [asked.sentence] * 6)
        values = [score.value for score in said]
        for did, places in WRONG.items():
            [k] = (k for k in places if k != asked.right)
            if (value := values[asked.right]) is not None and (other := values[k]) is not None:
                right[did][index] = float(value > other) + (value == other) / 2
    told = {did: statistics.bounded_mean(list(r.values()), list(r)) for did, r in right.items()}
    return {
        did: f"{100 * one.value:.1f} [{100 * one.low:.1f}, {100 * one.high:.1f}]"
        for did, one in told.items()
        if one is not None and one.low is not None and one.high is not None
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--judge", default="matching:nano:reward")
    parser.add_argument("--scenes", type=int, default=150)
    args = parser.parse_args()
    judge = metrics.load_reward(args.judge)
    print("| what is new |", " | ".join(WRONG), "|\n|", "---|" * (len(WRONG) + 1), sep="")
    for label, world, wording in ROWS:
        cells = shares(judge, label, world, wording, args.scenes)
        print(f"| {label} |", " | ".join(cells.get(did, "–") for did in WRONG), "|", flush=True)


if __name__ == "__main__":
    main()
