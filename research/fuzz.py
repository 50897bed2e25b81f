"""Wrong inputs end in one sentence: for every command what is drawn from seeds.

python -m research.fuzz [COUNT] [COMMAND]: 200 cases of every command, or COUNT of one.

A case is a command line that works, with its files beside it, and one thing broken: the value of an option,
a file cut off or replaced by noise, a value of another type, a key that is missing, a folder where a file
belongs or the reverse. Allowed are a right result, or one sentence and an exit code; never a traceback, and
what was there before is as it was.
"""

import json
import pkgutil
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

from nein import cli
from nein.config import options
from nein.engine import atomic
from nein.engine.images import write_png
from tests.helpers import commands
from tests.helpers.lines import LINES
from tests.negbench_build import conftest as coco
from tests.negvqa_build import conftest as choices
from tests.reporting import made

VALUES = (
    "", " ", "-1", "0", "1", "3.5", "nan", "inf", "1e999", "99999999999999999999", "x", "None", "null",
    "true", "[]", "{}", "a,b", ",", "a=b", "=", ":", "nano:nothing", "nano:", "openai:", "openai:http://127.0.0.1:9/v1#m",
    "plugin:nothing", "math:pi", "nein.cli:main", "os:getcwd", "~", "..", "/", "/dev/null", "{w}", "{w}/data",
    "{w}/captions.json", "{w}/nowhere", "{w}/nowhere/x", "{w}/out/x.pdf", "{w}/out/x.docx", "é☃ \n",
    "%s{}", "a" * 5000, "!!python/object:os.system", "- a", "a: b", "a: [", "--out", "0x10", "١٢",
)  # fmt: skip
OTHERS: tuple[object, ...] = (
    None, "", "x", -1, 0, 3.5, 10**30, True, [], ["x"], {}, {"a": 1}, "2", [[]], float("nan"),
)  # fmt: skip


def write_world(folder):
    """What the lines read, and finished results in `out`."""
    rows = made.records(3, 2)
    made.write_data(folder / "data", rows)
    values = {"l1": lambda i: 0.1, "removal_vqa": lambda i: float(i % 2), "removal_ovd": lambda i: 1.0}
    for track in ("negative", "remove"):
        made.write_run(folder / "runs", folder / "data", "ip2p", track, rows, values, features=3)
    (folder / "labels.csv").write_text(f"editor,track,id,gone\nip2p,negative,{rows[0]['NeIn']},1\n")
    _small_coco(folder)
    shutil.copytree(folder / "images", folder / "pictures")
    choices.write(folder, choices.rows()[:4])
    (folder / "check.csv").write_text("sheet,items,rater,item,verdict,seconds,note\ns,1,Ada,1,right,2,\n")
    items = {"e": {"id": rows[0]["NeIn"], "runs": [["ip2p", "negative"]], "gold": ""}}
    plan = {"pairs": False, "drawn": [0], "sheets": ["s"], "items": items}
    atomic.write_json(folder / "study" / "study.json", plan)
    heads = "sheet,items,rater,item,gone,kept,artefacts,seconds,note"
    (folder / "ada.csv").write_text(f"{heads}\ns,1,Ada,e,gone,mostly,none,2,\n")
    retrieval = "--model random --scenes 12 --tasks retrieval --out {w}/out/retrieval --device cpu"
    kept = {"eval": "done", "negvqa": "negvqa", "calibrate": "done/calibration"}  # what other lines read
    names = ("eval", "data nano", "stats", "negvqa", "negvqa check", "study", "calibrate", "negbench eval")
    for name in names:
        words = (retrieval if name == "negbench eval" else LINES[name]).format(w=folder).split()
        ended = run(name, words, folder)
        assert ended.returncode == 0, (name, ended)
        if name in kept:
            shutil.copytree(words[words.index("--out") + 1], folder / kept[name])
    return folder


def _small_coco(folder):
    images, things, said = [], [], []
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        write_png(folder / "images" / name, coco.picture(20 * number))
        images.append({"id": number, "file_name": name})
        things += [{"image_id": number, "category_id": k} for k in range(3) if k != number]
        said.append({"image_id": number, "caption": f"A picture of number {number} without a boat."})
    kinds = [{"id": k, "name": name} for k, name in enumerate(("dog", "cat", "car"))]
    found = {"images": images, "annotations": things, "categories": kinds}
    atomic.write_json(folder / "instances.json", found)
    atomic.write_json(folder / "captions.json", {"images": images, "annotations": said})
    lines = ({"image": name, "caption": "A dog and a cat."} for name in ("a.png", "b.png"))
    atomic.write_lines(folder / "captions.jsonl", lines)


def case(name, number, folder):
    """(words, what is broken). folder: a copy of the world, in which files are broken."""
    chance = random.Random(f"{name} {number}")
    words = LINES[name].format(w=folder).split()
    files = _read(words, folder)
    kinds = [_option] * 4 + ([_damaged, _damaged, _edited, _edited, _other_kind] if files else [_other_kind])
    return chance.choice(kinds)(chance, name, words, files, folder)


def _read(words, folder):
    """The files that a line names or that lie in folders that it names, what it writes aside."""
    named = [Path(word) for word in words if word.startswith(str(folder)) and "/out/" not in word]
    return sorted({file for path in named for file in (path, *path.rglob("*")) if file.is_file()})


def _option(chance, name, words, files, folder):
    parser = options.make_parser(pkgutil.resolve_name(cli.COMMANDS[name].configuration), "", "")
    actions = [a for a in parser._actions if a.option_strings and a.dest not in ("help", "dry_run")]
    flags = [action.option_strings[0] for action in actions]
    flag, value = chance.choice(flags), chance.choice(VALUES).replace("{w}", str(folder))
    if chance.random() < 0.15:
        place = chance.randrange(len(words))
        return [*words[:place], value, *words[place + 1 :]], f"{value[:60]!r} for {words[place]}"
    return [*words, f"{flag}={value}"], f"{flag}={value[:60]!r}"


def _damaged(chance, name, words, files, folder):
    path = chance.choice(files)
    data = path.read_bytes()
    if chance.random() < 0.5:
        broken = bytearray(data[: chance.randrange(len(data) or 1)])
    else:
        broken = bytearray(data or b"\0")
        for _ in range(chance.choice((1, 3, 30))):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
    path.write_bytes(broken)
    return words, f"{path.relative_to(folder)} with {len(broken)} of {len(data)} bytes, or others"


def _edited(chance, name, words, files, folder):
    texts = [path for path in files if path.suffix in (".json", ".jsonl")]
    if not texts:
        return _damaged(chance, name, words, files, folder)
    path = chance.choice(texts)
    text, by_line = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
    content = [json.loads(row) for row in (text.splitlines() if by_line else [text])]
    missing, holder = chance.random() < 0.5, _holder(chance, content if by_line else content[0])
    if holder:
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        if missing:
            del holder[key]
        else:
            holder[key] = chance.choice(OTHERS)
    path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return words, f"{'something missing' if missing else 'another type'} in {path.relative_to(folder)}"


def _holder(chance, content):
    while isinstance(content, dict | list) and content:
        values = content.values() if isinstance(content, dict) else content
        inner = [value for value in values if isinstance(value, dict | list) and value]
        if not inner or chance.random() < 0.3:
            return content
        content = chance.choice(inner)
    return content


def _other_kind(chance, name, words, files, folder):
    named = [Path(word) for word in words if word.startswith(f"{folder}/")]
    if not named:
        return _option(chance, name, words, files, folder)
    path = chance.choice([*named, *files])
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("no folder")
    else:
        path.unlink(missing_ok=True)
        path.mkdir(parents=True)
    return words, f"{path.relative_to(folder)} is a {'folder' if path.is_dir() else 'file'}"


def run(name, words, folder):
    return commands.in_a_fork(*name.split(), *words, cwd=folder)


def prints(folder):
    """File -> its bytes, of what is in `out`; manifests aside, which name the latest command."""
    files = [path for path in sorted((folder / "out").rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.name != "manifest.json"}


def complaint(ended, before, after):
    if "Traceback" in ended.stderr:
        return "a traceback"
    if ended.returncode not in (0, 1, 2, 3):
        return f"exit code {ended.returncode}"
    if ended.returncode == 0:
        return None
    changed = [name for name in before if after.get(name) != before[name]]
    if changed:
        return f"changed: {', '.join(changed[:3])}"
    if ended.returncode == 1 and not ended.stderr:  # a check that failed says so on standard output
        return None if ended.stdout.strip() else "an exit code without a word"
    sentences = re.findall(r"^error: .+", ended.stderr, re.MULTILINE)
    return None if len(sentences) == 1 else f"{len(sentences)} sentences"


def faults(name, numbers, world, folder):
    said = []
    for number in numbers:
        place = Path(shutil.copytree(world, folder / str(number)))
        words, broken = case(name, number, place)
        before = prints(place)
        ended = run(name, words, place)
        if wrong := complaint(ended, before, prints(place)):
            said.append(f"{name} {number}, {broken}: {wrong}\n{ended.stderr[-2000:]}")
        shutil.rmtree(place)
    return said


def main(words=None):
    count, *names = words if words is not None else sys.argv[1:] or ["200"]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        world = write_world(Path(folder) / "world" / "w")
        for name in names or LINES:
            said = faults(name, range(int(count)), world, Path(folder))
            print(*said, f"{name}: {len(said)} of {count} are no sentence", sep="\n")
            wrong += len(said)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
