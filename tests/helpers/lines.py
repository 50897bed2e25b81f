"""A line of arguments for every command."""

#: Command -> a line that works; {w} is the folder of what it reads and writes.
LINES = {
    "eval": "--editor identity --metrics l1 --limit 2 --batch-size 2 --data {w}/data --out {w}/out/eval "
    "--device cpu",
    "grid": "{w}/runs --out {w}/out/grid.png --number 2 --size 32",
    "rewriters": "--rewriter rule --limit 4 --out {w}/out/rewriters --device cpu",
    "generators": "--generator tests.rehearsal:paint --limit 1 --judge none --out {w}/out/generators "
    "--device cpu",
    "report": "{w}/runs --out {w}/out/report.html --formats md,csv,html --labels {w}/labels.csv",
    "compare": "{w}/runs --track all --metrics l1",
    "mend": "random --limit 2 --mend decompose --out {w}/out/mend --device cpu",
    "calibrate": "{w}/done --judges vqa --sets sources --limit 2 --out {w}/out/calibration --device cpu",
    "check": "identity --number 3 --device cpu",
    "study": "{w}/runs --out {w}/study --labels {w}/ada.csv",
    "data nano": "--split val --sources 1 --out {w}/out/nano",
    "data show": "{w}/data --out {w}/out/data.html",
    "data check": "{w}/data --split val",
    "status": "{w}/runs",
    "reproduce": "negvqa-table1 --preset nano --limit 1 --out {w}/out/reproduce --device cpu",
    "export": "{w}/runs --out {w}/out/export",
    "leaderboard": "{w}/runs {w}/negvqa --out {w}/out/leaderboard",
    "list": "editors",
    "convert": "{w}/ldm.safetensors {w}/out/pipeline --base {w}/editor",
    "generate": "--source {w}/captions.jsonl --images {w}/pictures --limit 1 --out {w}/out/generate "
    "--device cpu",
    "stats": "{w}/captions.json --json {w}/out/stats.json",
    "negbench eval": "--model random --scenes 12 --limit 2 --tasks mcq --out {w}/out/negbench --device cpu",
    "negbench judge": "{w}/out/retrieval --judged-by {w}/done --queries 2 --device cpu",
    "negbench analyse": "--model random --objects dog/cat --out {w}/out/analysis --device cpu",
    "negbench generate": "--source coco --instances {w}/instances.json --captions {w}/captions.json --images "
    "{w}/images --out {w}/out/negbench-data --device cpu",
    "negbench convert": "{w}/open_clip.pt {w}/out/clip --architecture {w}/architecture.json",
    "negvqa": "--model nano:negvqa --questions 1 --limit 1 --batch-size 2 --out {w}/out/negvqa "
    "--device cpu",
    "negvqa generate": "--source nano --questions 2 --limit 2 --out {w}/out/questions",
    "negvqa check": "{w}/check.csv --out {w}/out/check.figures.csv",
}  # fmt: skip
