"""A stand-in for the hub on the loopback address."""

import hashlib
import json
import urllib.parse
from dataclasses import dataclass
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


class Hub(Listening):
    """What a test puts on it, and what was asked of it.

    models, datasets  "owner/name" -> repository.
    pages      Path of any other address -> content.
    status     Where not 200, what everything is answered with.
    """

    def __init__(self):
        self.models, self.datasets, self.pages = {}, {}, {}
        self.status, self.requests = 200, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
                outer.requests.append((self.command, path))
                status, headers, content = outer.answer(path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

            do_HEAD = do_GET

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

    def answer(self, path):
        """(status, headers, content)."""
        if self.status != 200 or path in self.pages:
            return self.status, {}, self.pages.get(path, b"") if self.status == 200 else b""
        parts = path.strip("/").split("/")
        about = parts[0] == "api"  # not a file, but what there is
        kind = parts[about] if parts[about] in ("models", "datasets") else "models"
        owner, name, *rest = parts[about + (parts[about] == kind) :]
        repository = getattr(self, kind).get(f"{owner}/{name}")
        if repository is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        if repository.gated and not about:
            return 403, {"X-Error-Code": "GatedRepo"}, b""
        revision = ("/".join(rest[1:]) or "main") if about else rest[1]
        if not repository.has(revision):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        files, commit = repository.files(revision), repository.commit(revision)
        if about:
            if rest[:1] == ["tree"]:
                facts = [
                    {"type": "file", "path": file, "size": len(content), "oid": _etag(content)}
                    for file, content in files.items()
                ]
            else:
                siblings = [
                    {"rfilename": file, "size": len(content), "blobId": _etag(content)}
                    for file, content in files.items()
                ]
                facts = {"id": f"{owner}/{name}", "sha": commit, "siblings": siblings, "private": False}
                facts |= {"gated": "manual" if repository.gated else False, "tags": [], "downloads": 0}
            return 200, {}, json.dumps(facts).encode()
        content = files.get("/".join(rest[2:]))
        if content is None:
            return 404, {"X-Repo-Commit": commit, "X-Error-Code": "EntryNotFound"}, b""
        return 200, {"X-Repo-Commit": commit, "ETag": f'"{_etag(content)}"'}, content


def _etag(content):
    """As the hub has it: of large files their SHA-256, of others the id of git's object."""
    if len(content) >= LARGE:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
