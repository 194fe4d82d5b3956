"""A small hub on this machine that speaks enough of the real one's protocol for the real huggingface_hub client.

Run as a program: ``python local_hub.py FOLDER``. FOLDER/ORG/NAME/... are repositories of one commit each. It prints its
address, then one line for every request.
"""

import hashlib
import json
import sys
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
        print(self.command, self.path, flush=True)

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
        if not folder.is_dir():
            self.refuse("RepoNotFound")
        elif question == "revision" and rest[0] not in ("main", COMMIT):
            self.refuse("RevisionNotFound")
        else:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            if question == "tree":
                body = [
                    {
                        "type": "file",
                        "path": str(path.relative_to(folder)),
                        "size": path.stat().st_size,
                        "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
                    }
                    for path in files
                ]
            else:
                siblings = [{"rfilename": str(path.relative_to(folder))} for path in files]
                body = {"id": repository, "modelId": repository, "sha": COMMIT, "private": False, "siblings": siblings}
            self.send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def answer_with_file(self, repository, revision, name, *, body_wanted):
        path = ROOT / repository / name
        if revision not in ("main", COMMIT):
            self.refuse("RevisionNotFound")
        elif (ROOT / repository / f".fail-on-{name}").exists():
            self.send(403, b"", {})
        elif not path.is_file():
            self.refuse("EntryNotFound")
        else:
            content = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self.send(200, content, headers, body_wanted=body_wanted)

    def refuse(self, code):
        self.send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": code})

    def send(self, status, body, headers, *, body_wanted=True):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body_wanted and self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
