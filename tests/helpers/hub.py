"""A stand-in for the hub on the loopback address."""

import hashlib
import json
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.loopback import Listening

LARGE = 4096  # bytes from which a file is kept as the hub keeps weights, with its SHA-256


@dataclass
class Repository:
    """`revisions`: branch or tag -> path -> content. `gated`: a licence has to be accepted."""

    revisions: dict[str, dict[str, bytes]]
    gated: bool = False

    def commit(self, revision):
        text = "".join(f"{n}:{hashlib.sha1(c).hexdigest()}" for n, c in self.files(revision).items())
        return hashlib.sha1(text.encode()).hexdigest()

    def files(self, revision):
        commits = [name for name in self.revisions if revision == name] or [
            name for name in self.revisions if self.commit(name) == revision
        ]
        return self.revisions[commits[0]]

    def has(self, revision):
        return any(revision in (name, self.commit(name)) for name in self.revisions)


def files_of(folder, *, leave_out="training.json"):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != leave_out
    }


@dataclass
class Hub(Listening):
    """What a test puts on it, and what was asked of it.

    models, datasets  "owner/name" -> repository.
    pages      Path of any other address -> content.
    status     Where not 200, what everything is answered with.
    """

    models: dict[str, Repository] = field(default_factory=dict)
    datasets: dict[str, Repository] = field(default_factory=dict)
    pages: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self):
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer._answer(self, with_content=True)

            def do_HEAD(self):
                outer._answer(self, with_content=False)

            def log_message(self, *_):
                pass

        self.listen(Handler)
        self.url = self.address

    def add(self, name, folder, revision="main"):
        files = files_of(folder) if isinstance(folder, Path) else dict(folder)
        repository = self.models.setdefault(name, Repository({}))
        repository.revisions[revision] = files
        return repository

    def downloads(self):
        return [path for method, path in self.requests if method == "GET" and "/api/" not in path]

    def _answer(self, handler, *, with_content):
        path = urllib.parse.unquote(urllib.parse.urlsplit(handler.path).path)
        self.requests.append((handler.command, path))
        if self.status != 200:
            self._send(handler, self.status, {}, b"", with_content)
        elif path in self.pages:
            self._file(handler, {}, self.pages[path], with_content)
        elif path.startswith("/api/"):
            status, headers, content = self._facts(path.removeprefix("/api/"))
            self._send(handler, status, headers, json.dumps(content).encode(), with_content)
        else:
            self._resolve(handler, path, with_content)

    def _facts(self, path):
        kind, owner, name, *rest = path.split("/")
        repository = (self.models if kind == "models" else self.datasets).get(f"{owner}/{name}")
        if repository is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"}
        revision = "/".join(rest[1:]) or "main"
        if not repository.has(revision):
            return 404, {"X-Error-Code": "RevisionNotFound"}, {"error": "Revision not found"}
        if rest[:1] == ["tree"]:
            files = repository.files(revision).items()
            listed = [{"type": "file", "path": p, "size": len(c), "oid": _etag(c)} for p, c in files]
            return 200, {}, listed
        siblings = [
            {"rfilename": file, "size": len(content), "blobId": _etag(content)}
            for file, content in repository.files(revision).items()
        ]
        facts = {"id": f"{owner}/{name}", "sha": repository.commit(revision), "siblings": siblings}
        gated = "manual" if repository.gated else False
        return 200, {}, {**facts, "gated": gated, "private": False, "tags": [], "downloads": 0}

    def _resolve(self, handler, path, with_content):
        parts = path.strip("/").split("/")
        table = self.datasets if parts[0] == "datasets" else self.models
        owner, name, _, *rest = parts[parts[0] == "datasets" :]
        repository = table.get(f"{owner}/{name}")
        if repository is None:
            return self._send(handler, 404, {"X-Error-Code": "RepoNotFound"}, b"", with_content)
        if repository.gated:
            return self._send(handler, 403, {"X-Error-Code": "GatedRepo"}, b"", with_content)
        revision, file = rest[0], "/".join(rest[1:])
        if not repository.has(revision):
            return self._send(handler, 404, {"X-Error-Code": "RevisionNotFound"}, b"", with_content)
        headers = {"X-Repo-Commit": repository.commit(revision)}
        content = repository.files(revision).get(file)
        if content is None:
            return self._send(handler, 404, {**headers, "X-Error-Code": "EntryNotFound"}, b"", with_content)
        return self._file(handler, {**headers, "ETag": f'"{_etag(content)}"'}, content, with_content)

    def _file(self, handler, headers, content, with_content):
        self._send(handler, 200, headers, content, with_content)

    def _send(self, handler, status, headers, content, with_content):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if with_content:
            handler.wfile.write(content)


def _etag(content):
    """As the hub has it: of large files their SHA-256, of others the id of git's object."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
