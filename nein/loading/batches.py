"""Requests that a service answers within a day at half the price: OpenAI's Batch API.

A command works in rounds. A request without a reply is written down, and its row says that it waits; at the
end of the round `collect` sends what was written down, waits and keeps the replies, and the next round makes
those rows again. Files in OUT/batches:

<name>.requests.jsonl   what is (to be) sent; gone when the replies are there
<name>.json             address, model, path, digests of the requests, ids of the file and the batch
<name>.replies.jsonl    a line for every request
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nein.loading import spending
from nein.loading.errors import UnavailableError, UserError

#: Limits of one batch. Source: openai-python, types/batch_create_params.py.
MOST_REQUESTS, MOST_BYTES = 50_000, 200_000_000
ENDED = ("completed", "expired", "cancelled", "failed")
PAUSES = [1.0, 30.0]  # seconds between two looks at a batch: at first, and at most
UPLOAD = 900.0  # seconds

Reply = tuple[int, Any]


class Batches:
    """The batches of OUT, of one process at a time; its threads share them. Raises UserError where another
    process has them. Of earlier commands' replies those count that are answers: what failed is sent again."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "batches"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._folder / "lock")
        self._mutex = threading.Lock()
        self._replies: dict[str, tuple[Path, int]] = {}  # digest of a request -> where its reply is
        self._sent: set[str] = set()
        self._states: dict[str, dict[str, Any]] = {}  # name of a batch that is not collected -> its file
        self._open: dict[tuple[str, str, str], str] = {}  # address, model, path -> name of a batch in writing
        self._services: dict[tuple[str, str], Any] = {}
        for path in self._folder.glob("*.json"):
            if self._path(path.stem, "replies").exists():
                self._replies |= {
                    key: where for key, where, reply in self._lines(path.stem) if reply[0] == 200
                }
            else:
                self._states[path.stem] = json.loads(path.read_bytes())
                self._sent |= {*self._states[path.stem]["ids"]}
        for path in self._folder.glob("*.requests.jsonl"):  # of a round that was cut short, or collected
            if path.name.partition(".")[0] not in self._states:
                path.unlink()

    def close(self) -> None:
        self._lock.close()

    def reply(self, service: Any, path: str, body: Mapping[str, Any], draw: Any = "") -> Reply | None:
        """(HTTP status, content) of the reply to a request, or None: it is written down. Status 0: the batch
        has no reply, and the content says why."""
        digest = hashlib.sha256(json.dumps([path, body, draw], sort_keys=True).encode()).hexdigest()[:32]
        with self._mutex:
            self._services[service.address, service.model] = service
            if digest not in self._replies:
                if digest not in self._sent:
                    self._write(service, path, digest, body)
                return None
            file, start = self._replies[digest]
        with file.open("rb") as lines:
            lines.seek(start)
            return _read(json.loads(lines.readline()))

    def collect(self) -> bool:
        """Sends what was written down, and returns when all that is sent has come back; whether anything
        was. Raises UnavailableError, of which one kind is BudgetError."""
        import openai

        self._open.clear()
        waiting, poor = {}, None
        for name, state in self._states.items():
            if (service := self._services.get((state["address"], state["model"]))) is not None:
                try:
                    if "batch" not in state:
                        self._send(name, state, service)
                    waiting[name] = service
                except spending.BudgetError as error:
                    poor = error
        if poor is not None and not waiting:
            raise poor
        began, pause = bool(waiting), PAUSES[0]
        silence = (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError)
        while waiting:
            for name, service in list(waiting.items()):
                with _sentences(service), contextlib.suppress(*silence):
                    batch = service.client.batches.retrieve(self._states[name]["batch"])
                    if batch.status in ENDED:
                        self._fetch(name, waiting.pop(name), batch)
            if waiting:
                time.sleep(pause)
                pause = min(2 * pause, PAUSES[1])
        return began

    def _path(self, name: str, what: str) -> Path:
        return self._folder / f"{name}.{what}.jsonl"

    def _write(self, service: Any, path: str, digest: str, body: Mapping[str, Any]) -> None:
        line = json.dumps({"custom_id": digest, "method": "POST", "url": f"/v1{path}", "body": body}) + "\n"
        key = service.address, service.model, path
        state = self._states.get(self._open.get(key, ""))
        if state is None or len(state["ids"]) >= MOST_REQUESTS or state["bytes"] + len(line) > MOST_BYTES:
            self._open[key] = uuid.uuid4().hex
            state = dict(zip(("address", "model", "path"), key, strict=True)) | {"ids": [], "bytes": 0}
            self._states[self._open[key]] = state
        with self._path(self._open[key], "requests").open("a", encoding="utf-8") as file:
            file.write(line)
        state["ids"].append(digest)
        state["bytes"] += len(line)
        self._sent.add(digest)

    def _send(self, name: str, state: dict[str, Any], service: Any) -> None:
        """Uploads and begins a batch, unless that was done; as much of it as the budget has room for."""
        path, resumed = self._path(name, "requests"), "file" in state
        if not resumed:
            ids = [f"{name}-{digest}" for digest in state["ids"]]
            room = spending.ledger().hold(ids, state["model"] + spending.BATCH, state["address"])
            if room < len(ids):
                path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:room]))
                self._sent -= {*state["ids"][room:]}
                del state["ids"][room:]
            with _sentences(service), path.open("rb") as file:
                uploader = service.client.with_options(timeout=UPLOAD).files
                self._note(name, file=uploader.create(file=(path.name, file), purpose="batch").id)
        with _sentences(service):
            known = service.client.batches.list(limit=100).data if resumed else ()  # begun before a kill?
            same = [earlier for earlier in known if (earlier.metadata or {}).get("nein") == name]
            batch = same[0] if same else service.client.batches.create(
                completion_window="24h", endpoint=f"/v1{state['path']}", input_file_id=state["file"],
                metadata={"nein": name},
            )  # fmt: skip
        self._note(name, batch=batch.id)
        self._say(name, "sent, to be answered within 24 hours")

    def _note(self, name: str, **more: Any) -> None:
        self._states[name] |= more
        part = self._folder / f"{name}.part"
        part.write_text(json.dumps(self._states[name]), encoding="utf-8")
        part.replace(self._folder / f"{name}.json")

    def _say(self, name: str, what: str) -> None:
        state = self._states[name]
        message = f"Batch {state['batch']}, {len(state['ids']):,} requests to {state['model']}: {what}."
        print(message, file=sys.stderr, flush=True)

    def _fetch(self, name: str, service: Any, batch: Any) -> None:
        """Keeps the replies of a batch that has ended, and what they cost."""
        state, part = self._states[name], self._folder / f"{name}.part"
        with part.open("wb") as file:
            for identity in filter(None, (batch.output_file_id, batch.error_file_id)):
                with service.client.files.with_streaming_response.content(identity) as reply:
                    for chunk in reply.iter_bytes():
                        file.write(chunk)
                file.write(b"\n")
        used: dict[str, Mapping[str, int]] = {}
        for digest, _, (status, content) in self._lines(name, part):
            used[digest] = spending.tokens(content.get("usage")) if status == 200 else {}
        lacking = [digest for digest in state["ids"] if digest not in used]
        errors = (batch.errors and batch.errors.data) or []
        why = {"code": f"batch_{batch.status}", "message": "".join(str(item.message) for item in errors[:1])}
        with part.open("a", encoding="utf-8") as file:
            for digest in lacking:
                file.write(json.dumps({"custom_id": digest, "response": None, "error": why}) + "\n")
        for digest in state["ids"]:
            charge = state["model"] + spending.BATCH, state["address"], used.get(digest, {})
            spending.ledger().paid(f"{name}-{digest}", *charge)
        part.replace(self._path(name, "replies"))
        self._replies |= {digest: where for digest, where, _ in self._lines(name)}
        self._path(name, "requests").unlink(missing_ok=True)
        self._say(name, f"{batch.status}, {len(used):,} replies")
        del self._states[name]

    def _lines(self, name: str, path: Path | None = None) -> Iterator[tuple[str, tuple[Path, int], Reply]]:
        """Digest, place and reply of every line."""
        start, replies = 0, self._path(name, "replies")
        with (path or replies).open("rb") as file:
            for line in file:
                if line.strip():
                    entry = json.loads(line)
                    yield str(entry["custom_id"]), (replies, start), _read(entry)
                start += len(line)


def _read(line: Mapping[str, Any]) -> Reply:
    if isinstance((response := line.get("response") or {}).get("body"), dict):
        return int(response["status_code"]), response["body"]
    error = line.get("error") or {}
    return 0, f"{error.get('code') or 'no reply'}: {error.get('message') or 'its batch has no reply'}"


@contextlib.contextmanager
def _sentences(service: Any) -> Iterator[None]:
    """An answer that is not about one request: one sentence."""
    import openai

    try:
        yield
    except (openai.APIConnectionError, openai.APIStatusError) as error:
        status = getattr(error, "status_code", 0)
        message = f"'{service.address}' takes no batches (HTTP {status}); leave --batch-api out."
        if status not in (404, 405, 501):
            why = service.cleared(str(error), 1).splitlines()[0][:200]
            message = (
                f"'{service.address}' does not go on with a batch ({why}); give the command again to go on."
            )
        raise UnavailableError(message) from None


def check(service: Any) -> None:
    """Raises UnavailableError where a service has no batches."""
    with _sentences(service):
        service.client.with_options(max_retries=0).batches.list(limit=1)


def _locked(path: Path) -> Any:
    file = path.open("a")
    with contextlib.suppress(ImportError):  # Windows
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise UserError(
                f"Another command has the batches of '{path.parent}'; wait until it ends."
            ) from None
    return file


_batches: Batches | None = None


def keep(out: Path | None) -> None:
    """From now on requests of this process go in batches of OUT; None: each by itself."""
    global _batches
    if _batches is not None:
        _batches.close()
    _batches = None
    if out is not None:
        _batches = Batches(out)


def current() -> Batches | None:
    return _batches


def collect() -> bool:
    """See `Batches.collect`; False without batches."""
    return _batches is not None and _batches.collect()
