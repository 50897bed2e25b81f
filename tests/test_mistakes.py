"""Wrong arguments of every command: exit code 2, and one sentence with the words behind "=>"."""

import shlex
import shutil

import pytest
import torch

from nein.editors import EditorError
from nein.loading.errors import UserError
from nein.metrics import MetricError
from nein.train import finetune_clip, finetune_ip2p
from tests.helpers.commands import exit_code, outcome
from tests.negbench.conftest import write_data
from tests.negvqa.tiny import write_questions

SCRIPTS = {"finetune_ip2p": finetune_ip2p.main, "finetune_clip": finetune_clip.main}
#: File -> its text; `world` has what else the lines name.
FILES = {
    "file": "in the way",
    "script.py": "",
    "clip/config.json": '{"model_type": "clip"}',
    "key.yaml": "batch_sise: 3",
    "inner.yaml": "models:\n  clipp: x",
    "list.yaml": "- a",
    "labels.csv": "editor,track,id,gone\nzone,negative,NeIn_000000000001_1,1\n",
    "number.yaml": "limit: true",
    "deep.yaml": "endpoint: {retries: no}",
    "broken.yaml": "a: [",
    "choices.jsonl": '{"index": 0, "image": "data/p0.png", "question": "What?", "A": "a", "B": "b", '
    '"answer": "A", "category": "GQA"}',
    "1.csv": "index,original\n10,A\n",
    "2.csv": "index,original,negated\n99,A,B\n",
    "3.csv": "index,original,negated\n10,A,B\n10,A,B\n",
}
LINES = """
evall => Unknown command 'nein evall'; did you mean 'nein eval'?
-x => Unknown command 'nein -x'
data chek folder => Unknown command 'nein data chek'; did you mean 'nein data check'?
nagbench eval => Unknown command 'nein nagbench'; did you mean 'nein negbench'?
list editor => editors

eval --preset papr => Unknown preset 'papr'; did you mean 'paper'?
eval --metrics clip-ii => Unknown metric 'clip-ii'; did you mean 'clip_i'?
eval --batch-size foo => --batch-size is 'foo'; it must be a valid integer.
eval --editor => --editor: expected one argument
eval limit 3 => 'limit' has no option before it; did you mean --limit?
eval identity => 'identity' has no option before it; did you mean --editor identity?
eval --preset paper => The paper preset needs NeIn's data: --data FOLDER
eval --config no.yaml => There is no configuration file 'no.yaml'; check the path of --config.
eval --config . => '.' is a folder; --config takes a YAML file.
eval --config key.yaml => Unknown key 'batch_sise'; did you mean 'batch_size'?
eval --config inner.yaml => Unknown key 'models.clipp'; did you mean 'models.clip'?
eval --config number.yaml => --limit is 'true'; it must be a number.
eval --config deep.yaml => --endpoint.retries is 'false'; it must be a number.
eval --device gpu => --device is 'gpu'; it must be auto, cpu, cuda, cuda:N or mps.
eval --limit 0 => --limit is '0'; it must be greater than 0.
eval --protocol pape => --protocol is 'pape'; it must be 'paper' or 'fixed' (did you mean 'paper'?)
eval --endpoint.retrys 4 => Unknown option --endpoint.retrys; did you mean --endpoint.retries?
eval --config list.yaml => must hold 'key: value' lines
eval --config broken.yaml => is not valid YAML
eval --editor ip2p,identity --editor-options.stepz 7 => Unknown option 'stepz'
eval --editor magicbrsh => did you mean 'magicbrush'
eval --editor identity --editor-options.steps 3 => Unknown option 'steps'
eval --editor ./nowhere => nowhere
eval --metrics l1 --editor ~nobody-here/x => ~nobody-here/x
eval --metrics l1 --editor LONG => LONG
eval --editor script.py => is a Python file; pass its function: script.py:FUNCTION
eval --editor mein/modell=identity => 'mein/modell' of 'mein/modell=identity' is no label; start it
eval --editor identity --metrics clip_i --models.clip ./clip --limit 1 => pytorch_model.bin
eval --editor identity --stages score --limit 1 => run the stage edit to make them
eval --editor identity --device cuda => sees no GPU of NVIDIA or AMD; use --device cpu
eval --editor identity --out file/out => (Not a directory); choose a writable folder with --out
eval --editor ip2p --mend best-of:1:removal => N from 2 to 64
eval --editor ip2p --mend best-of:4 => JUDGE one of removal, editscore:MODEL
eval --editor ip2p --mend best-of:4:judge => 'judge' is not a judge of edits
eval --editor ip2p --mend best-of:4:pairwize:a/b => did you mean 'pairwise'
eval --editor ip2p --mend best-of:4:pairwise:nowhere => There is no model folder
eval --editor ip2p --mend rewritten => rewrite:llm:MODEL
eval --editor ip2p --mend rewrite:llm: => Unknown rewriter 'llm:'
eval --editor ip2p --mend rewrite:nofile.py:f => nofile.py
eval --editor identity --metrics clip_i --models.clip '' => '' names no model
eval --editor ip2p --mend nag:1 => 'nag:1' is not a remedy; expected nag, or nag:SCALE with a scale above 1
eval --editor ip2p --mend vsf:much => expected vsf, or vsf:SCALE with a scale above 0
eval --editor identity --mend negative-prompt => takes 'negative_prompt', which 'identity'
eval --editor solid --mend attention => an editor that takes 'weights', which 'solid' does not
eval --preset paper --data x --editor flux2-klein --mend negative-prompt => which 'flux2-klein' does not
eval --preset paper --data x --editor flux2 --mend nag => takes 'guided', which 'flux2' does not; use --mend

rewriters --rewriter rul => Unknown rewriter 'rul'; did you mean 'rule'?
generators --generator nothing => 'nothing' is not a generator; expected a folder of images, diffusers:MODEL
generators --generator diffusers:./nowhere => There is no pipeline './nowhere'
generators --generator none.py:draw => cannot be imported
generators --judge none --detector none => are both none; leave out one
generators --preset paper => The paper preset needs prompts

report run --out x.html --formats htm => did you mean 'html'?
report run --out x.html --labels labels.csv => The labels are of zone/negative
study run --out none --labels labels.csv => has no study
report run --out x.html --calibration empty => has no calibration
report run --out x.html --thumbnails -1 => greater than or equal to 0
compare run => A comparison needs two complete runs, not 1
compare run --metrics removal => did you mean 'removal_
export empty => There is no run in 'empty'
leaderboard nowhere => There is no run in
eval --on ranks => --on ranks needs several processes; start the command with torchrun.
mend openai:http://localhost:1/v1#m => pass --kind editor, encod
mend nano:dino => pass --kind editor, encod
slurm grid x => nein slurm submits eval, rewriters, generators, mend,
slurm nothing => nein slurm submits eval, rewriters, generators, mend,

report runs --out / => '/' is a folder; --out takes a file
report runs --out r.docx => takes a page
negvqa --model nano:negvqa --scoring generated --mend consistent => needs probabilities
grid run --metric dinno --select worst => did you mean 'dino'
grid run --metric dino --select worst => No sample has a value of dino here
grid run --tracks add => No run here has the track add
grid run --out x.docx => 'x.docx' has an unknown ending; --out takes .png, .pdf or .svg.
grid run --out . => '.' is a folder; --out takes a file, for example grid.png.
grid run --columns sample,idenity => Unknown column 'idenity'; did you mean 'identity'?
grid run --highlight nobody => Unknown column or sample 'nobody'
calibrate run --judges vqq => did you mean 'vqa'?
calibrate run --limit 1 => --limit is 1; pass at least 2
calibrate run --judges none => --judges is empty
calibrate run --instances key.yaml => Invalid JSON
calibrate run --instances none.json => There is no file
check identify => did you mean
check identity --number 2 => greater than or equal to 3
check solid --editor-options.color red => expected '#rrggbb'
check --kind vqa nowhere => no model folder 'nowhere'
check --kind vqa plugin:echo => no installed package has judges
check --kind vqa no_such_module:load => cannot be imported
check --kind vqa math:sqrt => 'math:sqrt' is neither a judge nor a function of kind, device
reproduce => needs TABLE
reproduce nein-tabel3 => did you mean 'nein-table3'
reproduce nein-table3 --preset=nano --run.foo 3 => Unknown option --foo

negbench eval --model clop => did you mean 'clip'
negbench eval --model negclip => nein negbench convert --architecture ViT-B-32 negclip.pth
negbench eval --model none => No model was named
negbench eval --model open_clip:ViT-B-32 => names no weights
negbench eval --model open_clip:ViT-B32/openai => did you mean 'ViT-B-32'
negbench eval --model open_clip:ViT-B-32/openia => did you mean 'openai'
negbench eval --model open_clip:ViT-B-32/openai#relu => Unknown activation 'relu'
negbench eval --model open_clip:ViT-B-32/negclip.pth => nein negbench convert
negbench eval --model open_clip:ViT-B-32/x.safetensors => There is no file 'x.safetensors'
negbench eval --model conch => nein.negbench(OBJECT)
negbench eval --model nowhere => nowhere
negbench eval --model ~nobody-here/x => ~nobody-here/x
negbench eval --model LONG => LONG
negbench eval --model constant:3 => takes no seed
negbench eval --model random --mend decompose:11 => takes decompose[:LAMBDA]
negbench eval --model random --mend spacevlm:2 => and spacevlm[
negbench eval --datasets cocoa => did you mean 'coco'
negbench eval --data nowhere => --data is 'nowhere'
negbench eval --datasets voc2007 => --data nano draws nein and scope
negbench eval --preset paper => --data FOLDER
negbench eval --split dev --data . => --data nano
negbench eval --data negbench --datasets coco => None of the 8 images of COCO exists
negbench eval --data negbench --datasets voc2007 => (VOC2007_mcq.csv, VOC2007_mcq_llama3.1_rephrased.csv)
negbench eval --data negbench --datasets voc2007 => pascal/VOC/voc2007/VOCtest_06-Nov-2007.tar
negbench eval --data empty => has none of NegBench's files
negbench eval --vlm openai:http://a/v1#m,openai:http://b/v1#m --model none => have the same name, 'openai-m'
negbench eval --vlm tests.rehearsal:no --tasks retrieval --model none => fits none of
negbench eval --model none --match tests.rehearsal:fits --datasets scope --tasks yes-no => fits none of
negbench analyse --objects dog/dog => pairs of two objects
negbench analyse --model , => No model was named
convert nowhere.ckpt out => There is no file
convert clip/pytorch_model.bin bare => already exists
convert file a/b => parent

generate --preset paper => --source is missing; pass COCO
generate --source nano --families plain,implicite => Unknown negation family 'implicite'; did you mean
generate --source nano --queried 8 --kept 9 => --kept is 9, more than the 8 categories
generate --source nano --absent-below 1.5 => a cosine lies between -1 and 1
generate --source nano --evaluation-share 2 => --evaluation-share is '2'; it must be less than or equal to 1.
generate --source nano --editor magicbrsh => did you mean 'magicbrush'?
generate --source nano --models.itm nowhere => pass nano:NAME, a hub id
negbench eval --trackers tensorbord => Unknown tracker 'tensorbord'; did you mean 'tensorboard'?
negbench generate --source coco => --source coco needs --instances
negbench generate --source captions --captions x.json => use --concepts llm
negbench generate --source voc --instances nowhere => There is no folder 'nowhere/JPEGImages'
negbench generate --paraphrase => --paraphrase asks a language model; pass --llm.model
negbench generate --query 'a photo' => must contain {object}
negbench generate --query '{object} {' => and no other braces
negbench generate --paraphrase --llm.model a/b --llm.attempts 2 => raise the temperature
negbench generate --source pairs --captions x.jsonl => also needs --instances
negbench generate --source pairs --maker magic => it must be editor:NAME or text:ID
negbench generate --source pairs --maker text:a/b => text:ID, --concepts llm, --validate or --paraphrase asks
negbench generate --source pairs --maker text:a/b --captions x.jsonl => draws scenes of its own; leave out
negbench generate --affneg => --affneg needs --paraphrase
negbench generate --mcq files --form training => is for evaluation questions on photographs
negbench generate --verify both --detector nano:owlv3 => owlv3
negvqa generate --source nowhere.jsonl --llm.model openai:http://127.0.0.1:9/v1#x => There is no file
negvqa generate --source choices.jsonl => asks a language model
negvqa generate --source choices.jsonl --llm.model openai:http://127.0.0.1:9/v1#x => Nobody answers
negvqa generate --source choices.jsonl --llm.model nowhere => no model folder 'nowhere'
negvqa generate --source choices.jsonl --llm.model a/b --columns.question prompt => --columns.question

negvqa --questions 4 --model nano:nothing => there is no nano model 'nothing'
negvqa --questions 4 --model ~nobody-here/x => ~nobody-here/x
negvqa --questions 4 --model LONG => cannot be used: File name too long
negvqa --questions 4 --model no/such/folder => no model folder
negvqa --questions 4 --model '' => --model names no model
negvqa --questions 4 --model judge --data nothing.jsonl => no file 'nothing.jsonl'
negvqa --questions 4 --model judge --scoring likelihood => Unknown scoring 'likelihood'
negvqa --questions 4 --model tests.rehearsal:NO_SUCH => has no attribute 'NO_SUCH'
negvqa --questions 4 --model openai:http://a/v1#m,openai:http://b/v1#m => have the same name
negvqa --model judge --judge openai:http://127.0.0.1:9/v1#m --judge-quantization bnb-fp4 => only LLaVA-NeXT
negvqa --model judge --data bare/questions.jsonl => No image of the questions exists
negvqa --questions 4 --model judge --matcher gpt => --matcher is 'gpt'; allowed: exact, llm:MODEL
negvqa --questions 4 --model judge --matcher llm:gpt => There is no model folder 'gpt'
negvqa --data data/questions.jsonl --answers-from 1.csv => has no column negated; expected index, original
negvqa --data data/questions.jsonl --answers-from 2.csv => of no question: line 2
negvqa --data data/questions.jsonl --answers-from 3.csv => one already: line 3
negvqa --data data/questions.jsonl --answers-from 4.csv => There is no file

finetune_ip2p --recipe nanno => Unknown recipe 'nanno'; did you mean 'nano'?
finetune_ip2p --steps=3 --epochs=1 => either --epochs or --steps
finetune_ip2p --base=x => either --epochs or --steps
finetune_ip2p --steps=3 --dropout=0.5 => --dropout is '0.5'; it must be less than or equal to 0.333
finetune_ip2p --steps=3 --flip=2 => --flip is '2'; it must be less than or equal to 1
finetune_ip2p --steps=3 --ema=1 => --ema is '1'; it must be less than 1
finetune_ip2p --steps=3 --batch-size=6 --micro-batch=4 => 6 is not a multiple of --micro-batch 4
finetune_ip2p --steps=3 --hold-out-templates=13 => has '13'; templates are numbered 0 to 12
finetune_ip2p --steps=3 --validate-every=1 --validation-metrics=dinno => did you mean 'dino'?
finetune_ip2p --recipe=nein-ip2p => The recipe 'nein-ip2p' needs NeIn's data: --data FOLDER
finetune_clip --out o --alpha 0,2 => --alpha has '2'
finetune_clip --out o --alpha 0.5,0.50 => twice
finetune_clip --out o --steps 5 --epochs 1 => either --epochs or --steps
finetune_clip --out o --trainable text --augment crop => pass --augment none
finetune_clip --out o --preset paper => The preset 'paper' needs its data
finetune_clip --out o --base random --steps 1 => random
finetune_clip --out o --captions nowhere.csv --steps 1 => nowhere.csv
finetune_clip --out o --batch-size 64 --nano-scenes 5 => needs 64 images with captions, but there are 3
finetune_clip --out o --beta2 1 => --beta2 is '1'; it must be less than 1
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder that the lines are typed in."""
    folder = tmp_path_factory.mktemp("world")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    torch.save({"weight": torch.zeros(1)}, folder / "clip" / "pytorch_model.bin")
    write_data(folder / "negbench")
    for name in ("empty", "bare"):
        (folder / name).mkdir()
    shutil.copy(write_questions(folder / "data"), folder / "bare")
    line = "--metrics removal_vqa --models.vqa tests.rehearsal:no --limit 2 --control none --device cpu"
    assert exit_code("eval", "--editor", "identity", *line.split(), "--out", folder / "run") == 0
    return folder


def results(folder):
    return {path for path in folder.rglob("*") if path.suffix in (".png", ".csv", ".jsonl", ".safetensors")}


#: More than a name of a file may have.
LONG = "x" * 300


@pytest.mark.parametrize("line", [line for line in LINES.splitlines() if line])
def test_a_mistake_is_one_sentence_before_any_work(line, world, capsys, monkeypatch):
    typed, sentence = line.replace("LONG", LONG).split(" => ")
    before, (name, *words) = results(world), shlex.split(typed)
    words += ["--scenes", "8"] if typed.startswith("negbench eval --model") else []  # few are drawn sooner
    monkeypatch.chdir(world)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if name in SCRIPTS:
        with pytest.raises((UserError, MetricError, EditorError)) as caught:
            SCRIPTS[name](words)
        said = f"error: {caught.value}"
    else:
        code, printed, said = outcome(capsys, name, *words)
        assert (code, printed) == (2, "")
    assert sentence in said
    assert "Traceback" not in said
    assert [row[:7] for row in said.splitlines() if row.startswith("error:")] == ["error: "]
    assert results(world) == before
