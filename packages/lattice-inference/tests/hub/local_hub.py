"""A small hub on this machine that speaks enough of the real one's protocol for the real huggingface_hub client.

Run as a program: ``python local_hub.py FOLDER``. FOLDER/ORG/NAME/... are repositories of one commit each. It prints its
address, then one line for every request. Safetensors files are what the real hub calls LFS files: stored by SHA-256.

Files in a repository that change the hub's behaviour, and are not served: ``.commit`` holds the commit's name;
``.fail-on-NAME`` refuses NAME; ``.slow`` stretches the weights over some moments; ``.drop-once`` breaks off in the middle
of the weights, once; ``.token`` holds the token without which nothing is served.
"""

import hashlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(sys.argv[1])
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(body_wanted=False)

    def do_GET(self):
        self.answer(body_wanted=True)

    def log_message(self, *arguments):
        # one write a line: several threads answer at once
        sys.stdout.write(f"{self.command} {self.path} {self.headers.get('Range', '')}\n")
        sys.stdout.flush()

    def answer(self, *, body_wanted):
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) >= 4:
            self.answer_about_repository("/".join(parts[2:4]), parts[4] if len(parts) > 4 else "", parts[5:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self.answer_with_file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), body_wanted=body_wanted)
        else:
            self.refuse("EntryNotFound")

    def answer_about_repository(self, repository, question, rest):
        folder = ROOT / repository
        if not folder.is_dir() or not self.is_allowed(folder):
            self.refuse("RepoNotFound")
        elif question == "revision" and rest[0] not in ("main", commit_of(folder)):
            self.refuse("RevisionNotFound")
        else:
            files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
            if question == "tree":
                body = [describe(path, str(path.relative_to(folder))) for path in files]
            else:
                siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
                sha = commit_of(folder)
                body = {"id": repository, "modelId": repository, "sha": sha, "private": False, "siblings": siblings}
            self.send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def answer_with_file(self, repository, revision, name, *, body_wanted):
        folder = ROOT / repository
        path = folder / name
        if not self.is_allowed(folder):
            self.refuse("RepoNotFound")
        elif revision not in ("main", commit_of(folder)):
            self.refuse("RevisionNotFound")
        elif (folder / f".fail-on-{name}").exists():
            self.send(403, b"", {})
        elif not path.is_file():
            self.refuse("EntryNotFound")
        else:
            content = path.read_bytes()
            headers = {"ETag": f'"{digest_of(path)}"', "X-Repo-Commit": commit_of(folder), "Accept-Ranges": "bytes"}
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send(
                206 if start else 200,
                content[start:],
                headers,
                body_wanted=body_wanted,
                folder=folder if path.suffix == ".safetensors" else None,
            )

    def is_allowed(self, folder):
        token = folder / ".token"
        return not token.exists() or self.headers.get("Authorization") == f"Bearer {token.read_text()}"

    def refuse(self, code):
        self.send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, status, body, headers, *, body_wanted=True, folder=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not body_wanted or self.command == "HEAD":
            return
        if folder is not None and (folder / ".drop-once").exists():
            (folder / ".drop-once").unlink()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif folder is not None and (folder / ".slow").exists():
            for start in range(0, len(body), len(body) // 10 + 1):
                self.wfile.write(body[start : start + len(body) // 10 + 1])
                time.sleep(0.005)
        else:
            self.wfile.write(body)


def commit_of(folder):
    stated = folder / ".commit"
    return stated.read_text() if stated.exists() else COMMIT


def digest_of(path):
    return (hashlib.sha256 if path.suffix == ".safetensors" else hashlib.sha1)(path.read_bytes()).hexdigest()


def describe(path, name):
    size = path.stat().st_size
    entry = {"type": "file", "path": name, "size": size, "oid": hashlib.sha1(path.read_bytes()).hexdigest()}
    if path.suffix == ".safetensors":
        entry["lfs"] = {"oid": digest_of(path), "size": size, "pointerSize": 134}
    return entry


class Server(ThreadingHTTPServer):
    request_queue_size = 256  # many processes with many threads connect at once


if __name__ == "__main__":
    server = Server(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
