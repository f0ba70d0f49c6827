"""A stand-in for the Hugging Face hub on this machine: repositories in memory behind the part of its HTTP API that
publishing and fetching a model use. It knows no owners, and its only token is `secret`."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """repositories: id -> file -> content; private: the ids that were made so; seen: all requests."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.seen: list[str] = []
        self.address = ""

    def commit(self, name: str) -> str:
        files = self.repositories[name]
        return hashlib.sha1(b"".join(k.encode() + files[k] for k in sorted(files))).hexdigest()


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, content: Any = None, headers: dict[str, str] | None = None) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            return b"".join(parts)

        def do_POST(self) -> None:
            path, body = unquote(urlsplit(self.path).path), self.body()
            hub.seen.append(f"POST {path}")
            if self.headers.get("Authorization") != "Bearer secret":
                return self.reply(401, {"error": "Invalid username or password."})
            if path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
                if name in hub.repositories:
                    return self.reply(409, {"url": f"{hub.address}/{name}"})
                hub.repositories[name] = {}
                if asked.get("private") or asked.get("visibility") == "private":
                    hub.private.add(name)
                return self.reply(200, {"url": f"{hub.address}/{name}"})
            if path == "/api/validate-yaml":
                return self.reply(200, {"errors": [], "warnings": []})
            name, action = self.split(path.removeprefix("/api/models/"))
            if action.startswith("preupload"):
                files = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                return self.reply(200, {"files": files})
            if action.startswith("commit"):
                for line in body.splitlines():
                    entry = json.loads(line)
                    if entry["key"] == "file":
                        hub.repositories[name][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                url = f"{hub.address}/{name}/commit/{hub.commit(name)}"
                return self.reply(200, {"commitUrl": url, "commitOid": hub.commit(name), "success": True})
            return self.reply(404, {"error": "not made for this"})

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.seen.append(f"{self.command} {path}")
            name, action = self.split(path.removeprefix("/api/models/").lstrip("/"))
            if name not in hub.repositories:
                return self.reply(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            files, commit = hub.repositories[name], hub.commit(name)
            if path.startswith("/api/models/") and action.startswith("tree"):
                listed = [
                    {"type": "file", "path": k, "size": len(v), "oid": hashlib.sha1(v).hexdigest()}
                    for k, v in files.items()
                ]
                return self.reply(200, listed)
            if path.startswith("/api/models/"):
                siblings = [{"rfilename": file} for file in files]
                return self.reply(200, {"_id": "1", "id": name, "sha": commit, "private": False, "siblings": siblings})
            file = action.removeprefix("resolve/").split("/", 1)[-1]
            if file not in files:
                return self.reply(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            etag = hashlib.sha1(files[file]).hexdigest()
            self.reply(200, files[file], {"ETag": f'"{etag}"', "X-Repo-Commit": commit})

        do_HEAD = do_GET

        def split(self, path: str) -> tuple[str, str]:
            owner, name, *rest = [*path.split("/"), ""]
            return f"{owner}/{name}", "/".join(rest).rstrip("/")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
