"""OpenAI's Batch API on the loopback address. Written from openai-python: resources/batches.py,
resources/files.py, types/batch.py."""

import json

JSON = {"Content-Type": "application/json"}


class BatchApi:
    """What a `tests.loopback.Server` needs to take batches.

    answer  Body of a request -> (status, content); status 0: the line has an error; None: there is no line.
    batches, lines  Those that were created, and the lines of every one.
    """

    def __init__(self, server, answer):
        self.answer, self.batches, self.lines, self._files = answer, [], [], {}
        server.rule, server.pages = self._post, self

    @property
    def bodies(self):
        return [line["body"] for lines in self.lines for line in lines]

    def get(self, path):
        """The reply to a GET, as `Server.pages` has it."""
        *_, kind, name = path.partition("?")[0].rsplit("/", 2)
        if name == "content":
            return lambda: (200, self._files[kind], {})
        found = [batch for batch in self.batches if batch["id"] == name]
        if name == "batches":
            return lambda: (200, {"data": self.batches, "object": "list", "has_more": False}, JSON)
        return (lambda: (200, self._ended(found[0]), JSON)) if found else None

    def _post(self, body, count):
        name = f"{'file' if 'purpose' in body else 'batch'}-{count}"
        if "purpose" in body:
            self._files[name] = body["file"]
            return 200, {"id": name, "object": "file"}, JSON
        lines = [json.loads(line) for line in self._files[body["input_file_id"]].splitlines()]
        assert {line["url"] for line in lines} == {body["endpoint"]}
        self.lines.append(lines)
        batch = {"id": name, "object": "batch", "status": "in_progress", "metadata": body["metadata"]}
        self.batches.append(batch)
        return 200, batch, JSON

    def _ended(self, batch):
        """The batch, which is in progress when it is looked at for the first time."""
        if batch.setdefault("looks", 0):
            good, bad = [], []
            for line in self.lines[self.batches.index(batch)]:
                if (reply := self.answer(line["body"])) is None:
                    continue
                status, content = reply
                response = {"status_code": status, "body": content} if status else None
                error = None if status else {"code": "server_error", "message": content}
                entry = {"custom_id": line["custom_id"], "response": response, "error": error}
                (good if status == 200 else bad).append(json.dumps(entry))
            self._files |= {f"{batch['id']}-{k}": "\n".join(part) for k, part in enumerate((good, bad))}
            batch |= {"status": "completed", "output_file_id": f"{batch['id']}-0"}
            batch |= {"error_file_id": f"{batch['id']}-1"} if bad else {}
        batch["looks"] += 1
        return batch
