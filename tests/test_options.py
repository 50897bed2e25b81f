"""The options of all commands: one way of reading them, groups declared once, and what `--dry-run` prints."""

import json
import pkgutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from PIL import Image

from nein import cli
from nein.config import groups, options
from nein.config.options import Names, Paths, argument, option
from tests.helpers.commands import exit_code, outcome
from tests.helpers.lines import LINES

#: Field -> the group that declares it.
SHARED = {
    "endpoint": groups.EndpointOptions,
    "preset": groups.Preset,
    "limit": groups.Limit,
    "overwrite": groups.Output,
    "seed": groups.Seed,
    "device": groups.OnDevice,
    "batch_size": groups.Batches,
    "dtype": groups.DtypeOptions,
    "runs": groups.Runs,
    "formats": groups.Page,
}
#: `nein calibrate --device` has the run's own as its default; the preset of `nein reproduce` is another's.
OWN = {
    ("nein.judges.config:CalibrateConfig", "device"),
    ("nein.benchmarks.mend_config:MendConfig", "preset"),
    ("nein.reproduce:ReproduceConfig", "preset"),
}


@dataclass
class Inner:
    """Words about the inner ones."""

    depth: int = option(3, "how deep")
    own_options: dict[str, Any] = option({}, "what else")


@dataclass(kw_only=True)
class Example(groups.Limit, groups.OnDevice):
    """Fields of every kind."""

    counted = "eggs"
    limit: groups.PositiveInt | None = 5

    places: Paths = argument("PLACE", "where to look")
    colors: Names = option(["red"], "which colors", "What", among=("red", "blue"), what="color")
    also: Paths = option([], "further places", "What")
    out: Path = option(Path("eggs.txt"), "file to write", "Output")
    maybe: Path | None = option(None, "another file")
    rest: dict[str, Any] = option({}, "what else there is")
    whole: bool | None = option(None, "whole or not")
    shown: bool = option(False, "shown or not, whatever a file says", negatable=True)
    size: Literal["small", "large"] | None = option(None, "how large")
    inner: Inner = field(default_factory=Inner)


@pytest.mark.parametrize("name", sorted({*cli.COMMANDS} - {"list", "status"}))
def test_a_dry_run_prints_what_a_configuration_file_may_say(name, tmp_path, capsys):
    first = outcome(capsys, *name.split(), *LINES[name].format(w=tmp_path).split(), "--dry-run")
    assert (first.code, first.stderr) == (0, "")
    (tmp_path / "c.yaml").write_text(first.stdout)
    again = outcome(capsys, *name.split(), "--config", tmp_path / "c.yaml", "--dry-run")
    assert again == first


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_options_that_commands_share_are_declared_in_one_place(name):
    place = cli.COMMANDS[name].configuration
    configuration = pkgutil.resolve_name(place)
    for item in options.fields(configuration):
        if item.name in SHARED and (place, item.name) not in OWN:
            group = SHARED[item.name]
            assert issubclass(configuration, group), item.name
            assert item.metadata == next(
                one.metadata for one in options.fields(group) if one.name == item.name
            )


def test_options_are_given_by_place_by_name_in_short_and_as_lists(tmp_path):
    words = "a b -o x --colors blue --colors=red,blue --also c,d --no-whole --inner.depth 4"
    given = Example.parse(words.split())
    assert (given.places, given.out) == ([Path("a"), Path("b")], Path("x"))
    assert (given.colors, given.also) == (["blue", "red"], [Path("c"), Path("d")])
    assert (given.whole, given.inner) == (False, Inner(4))
    given = Example.parse("a --rest.b 1 --rest.c=2 --inner.own_options.e 4".split())
    assert (given.rest, given.inner.own_options) == ({"b": 1, "c": 2}, {"e": 4})
    (tmp_path / "c.yaml").write_text("shown: true\n")
    of_file = ["a", "--config", str(tmp_path / "c.yaml")]
    assert [Example.parse([*of_file, *more]).shown for more in ([], ["--no-shown"])] == [True, False]


@pytest.mark.parametrize("text", ["#112233", "house #3", "#", "a # b # c"])
def test_a_number_sign_on_the_command_line_begins_no_comment(text, tmp_path):
    given = Example.parse(["a", "--out", text, "--rest.color", text, "--maybe", text])
    assert (given.out, given.rest, given.maybe) == (Path(text), {"color": text}, Path(text))
    file = tmp_path / "c.yaml"
    file.write_text(f"# a comment\nlimit: 9 # another\nrest: {{color: '{text}', steps: 3}}\n")
    filed = Example.parse(["a", "--config", str(file)])
    assert (filed.limit, filed.rest) == (9, {"color": text, "steps": 3})
    others = Example.parse(["a", "--rest.size", "3", "--rest.sides", "[1, '#2']", "--rest.none", "null"])
    assert others.rest == {"size": 3, "sides": [1, "#2"], "none": None}


def test_a_command_may_change_the_default_of_a_shared_option_and_keeps_its_help(capsys):
    assert Example.parse(["a"]).limit == 5
    with pytest.raises(SystemExit):
        options.read(Example, ["--help"], prog="nein lay", description="Lay eggs.")
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: nein lay PLACE [OPTIONS] Lay eggs.")
    assert "only the first N eggs (default: 5)" in text
    assert text.index("Main:") < text.index("What:")  # which the class declares first
    assert "Inner: Words about the inner ones." in text


def test_a_command_without_presets_takes_values_from_a_file_and_the_command_line_wins(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("places: [q, r]\nlimit: 9\nalso: ['a,b']\ninner:\n  depth: 7\n")
    filed = Example.parse(["--config", str(file)])
    assert (filed.places, filed.limit, filed.also) == ([Path("q"), Path("r")], 9, [Path("a,b")])
    assert filed.inner.depth == 7
    both = Example.parse(["z", "--limit", "2", "--config", str(file)])
    assert (both.places, both.limit, both.inner.depth) == ([Path("z")], 2, 7)


#: Commands that ask an endpoint, {s}.
ASKING = (
    "eval --editor identity --models.vqa {s} --metrics removal_vqa --control none",
    "eval --editor {s} --metrics l1 --control none",
    "eval --editor identity --mend rewrite:llm:{s} --metrics l1 --control none",
    "negvqa --model {s} --questions 2 --blind 0",
    "negbench eval --vlm {s} --model none --scenes 6 --tasks mcq --blind 0",
    "negbench generate --source nano --scenes 4 --form training --concepts llm --verify none --llm.model {s}",
    "negvqa generate --source {w}/choices.jsonl --images {w} --llm.model {s}",
    "check --kind vqa {s}",
)


@pytest.mark.parametrize("line", ASKING, ids=lambda line: line.partition(" --")[0])
def test_every_command_that_asks_an_endpoint_takes_its_pace(line, server, tmp_path):
    def failing(body, count):
        time.sleep(0.02)
        return 503, {"error": "busy"}, {}

    server.rule = failing
    question = {"index": 0, "image": "0.png", "question": "What is it?", "A": "a cat", "B": "a dog"}
    (tmp_path / "choices.jsonl").write_text(json.dumps(question | {"answer": "A", "category": "VQAv2"}))
    Image.new("RGB", (8, 8)).save(tmp_path / "0.png")
    words = line.format(s=f"openai:{server.url}#eye-7b", w=tmp_path).split()
    if words[0] != "check":
        words += ["--limit", 2, "--out", tmp_path / "out"]
    pace = "--endpoint.concurrency 1 --endpoint.retries 0 --endpoint.timeout 7"
    exit_code(*words, "--device", "cpu", *pace.split())
    assert server.headers
    assert server.most == 1
    sent = {(head["X-Stainless-Retry-Count"], head["X-Stainless-Read-Timeout"]) for head in server.headers}
    assert sent == {("0", "7.0")}
