"""An OpenAI-compatible endpoint on the loopback address, for tests."""

import email
import json
import math
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, Any, dict[str, str]]
HANG_UP = 0  # in place of an HTTP status: the connection is closed without a reply


class _Listener(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that hung up is no news
            super().handle_error(request, client_address)


class Listening:
    """A server on the loopback address, in a thread."""

    def listen(self, handler):
        self._server = _Listener(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        # How long `close` has to wait: half a second, if nothing is said.
        serving = {"poll_interval": 0.01}
        threading.Thread(target=self._server.serve_forever, kwargs=serving, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Server(Listening):
    def __init__(self):
        self.requests = []
        self.headers = []
        self.paths = []  # of all requests, those for the list of models as well
        self.active = self.most = 0
        self.rule = lambda body, count: (200, say("Yes"), {})
        self.models = (200, {"data": [{"id": "eye-7b"}, {"id": "eye-70b"}]}, {})
        self.pages = {}  # path -> reply, besides the list of models
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                page = outer.pages.get(self.path)
                self._reply(page() if page is not None else outer.models)

            def do_POST(self):
                length = int(self.headers["Content-Length"])
                data = self.rfile.read(length)
                if len(data) < length:
                    raise ConnectionResetError("the client hung up before all of its question was there")
                kind = self.headers["Content-Type"]
                body = fields_of(kind, data) if kind.startswith("multipart/") else json.loads(data)
                with lock:
                    outer.requests.append(body)
                    outer.headers.append({name.title(): value for name, value in self.headers.items()})
                    outer.active += 1
                    outer.most = max(outer.most, outer.active)
                    count = len(outer.requests)
                try:
                    reply = outer.rule(body, count)
                finally:
                    with lock:  # before the client has the reply, and may ask the next
                        outer.active -= 1
                self._reply(reply)

            def _reply(self, reply):
                outer.paths.append(self.path)
                status, content, headers = reply
                if status == HANG_UP:
                    self.connection.close()
                    self.close_connection = True
                    return
                if not isinstance(content, bytes):
                    content = (content if isinstance(content, str) else json.dumps(content)).encode()
                data = content
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass

            def log_message(self, *_):
                pass

        self.listen(Handler)
        self.url = f"{self.address}/v1"


def fields_of(kind, data):
    form = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + data)
    fields = {}
    for part in form.get_payload():
        content = part.get_payload(decode=True)
        name = part.get_param("name", header="content-disposition")
        fields[name] = content if part.get_filename() else content.decode()
    return fields


def say(text, top=None):
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    if top is not None:
        alternatives = [{"token": token, "logprob": math.log(p)} for token, p in top.items()]
        choice["logprobs"] = {"content": [{"token": text, "top_logprobs": alternatives}]}
    return {"choices": [choice], "usage": {"completion_tokens": 1}}
