"""How the Hub on this machine answers a request, with the checks of the real one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from builders.loopback_repository import LFS_ENDINGS, NO_COMMIT, Blob, Commit, Repository

if TYPE_CHECKING:
    from builders.loopback_hub import Hub


class CutOff(Exception):
    """The connection is to be dropped, with what was sent so far."""


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"X-Error-Message": message, **(headers or {})}


def _not_found(code: str, message: str) -> Refusal:
    return Refusal(404, message, {"X-Error-Code": code})


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    send_at_most: int | None = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

    def answer(self) -> None:
        parts = urlsplit(self.path)
        path, self.query = unquote(parts.path), parse_qs(parts.query)
        self.server.requests.append(f"{self.command} {path}")
        self.send_at_most = None
        self.body_read = False
        try:
            for pattern, action in self.server.faults:
                if pattern.search(f"{self.command} {path}"):
                    action(self)
            self.route(path)
        except CutOff:
            self.close_connection = True
        except Refusal as refusal:
            self.body()
            body = json.dumps({"error": refusal.message, "errors": [{"message": refusal.message}]}).encode()
            self.reply(refusal.status, body, refusal.headers)

    def route(self, path: str) -> None:
        if path == "/api/whoami-v2":
            return self.whoami()
        if path == "/api/repos/create" and self.command == "POST":
            return self.create()
        if path == "/api/repos/delete" and self.command == "DELETE":
            return self.delete()
        if path == "/api/validate-yaml":
            return self.validate_yaml()
        if match := re.fullmatch(r"/api/collections(?:/(.+?))?(/items)?", path):
            return self.collection(match[1], adds=bool(match[2]))
        if match := re.fullmatch(r"/.+/lfs/(\w{64})", path):
            oid = match[1]
            name = self.query.get("file", [""])[0]
            return self.put_lfs(oid) if self.command == "PUT" else self.send_file(self.lfs(oid), name)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self.repository(match[1] or "models/", match[2], write=True)
            return self.lfs_batch(match[2])
        if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(.*))?", path):
            return self.api(f"{match[1]}/", match[2], match[3] or "")
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+|refs/pr/\d+)/(.+)", path):
            return self.resolve(match[1] or "models/", match[2], match[3], match[4])
        raise Refusal(404, f"no such page: {path}")

    # --- who asks

    def user(self) -> tuple[str, str] | None:
        """Name and role behind the token; None without one."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.server.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.server.tokens.get(token)

    def writer(self, owner: str) -> str:
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        if user[1] != "write":
            raise Refusal(403, "You need a token with the write role")
        if user[0] != owner:
            raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        return user[0]

    def repository(self, kind: str, repo_id: str, *, write: bool = False) -> Repository:
        found = self.server.repositories.get(kind + repo_id)
        owner = repo_id.split("/")[0]
        user = self.user()
        if found is None or (found.private and (user is None or user[0] != owner)):
            status = 404 if user else 401  # the Hub does not say which of the two it is
            raise Refusal(status, "Repository not found", {"X-Error-Code": "RepoNotFound"})
        if write:
            self.writer(owner)
        return found

    def whoami(self) -> None:
        user = self.user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        name, role = user
        self.json({"type": "user", "name": name, "orgs": [], "auth": {"accessToken": {"role": role}}})

    # --- repositories

    def create(self) -> None:
        asked = json.loads(self.body())
        user = self.user()
        owner = asked.get("organization") or (user[0] if user else "")
        self.writer(owner)
        kind = f"{asked.get('type') or 'model'}s/"
        repo_id = f"{owner}/{asked['name']}"
        url = f"{self.server.url}/{'' if kind == 'models/' else kind}{repo_id}"
        with self.server.lock:
            taken = kind + repo_id in self.server.repositories
            if not taken:
                private = asked.get("visibility") == "private" or bool(asked.get("private"))
                made = self.server.repositories[kind + repo_id] = Repository(private)
                made.add(
                    "main",
                    {".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)},
                    "initial commit",
                    owner,
                )
        if taken:
            return self.json({"error": "You already created this model repo", "url": url}, status=409)
        self.json({"url": url, "name": repo_id})

    def collection(self, slug: str | None, *, adds: bool) -> None:
        """Makes a collection, shows one, or puts a repository into it."""
        found = self.server.collections
        if slug is None:
            asked = json.loads(self.body())
            self.writer(asked["namespace"])
            slug = f"{asked['namespace']}/{asked['title'].lower().replace(' ', '-')}-0123456789abcdef01234567"
            if slug in found:
                return self.json({"error": "exists", "slug": slug}, status=409)
            about = {"title": asked["title"], "private": asked["private"], "owner": asked["namespace"]}
            shown = {"theme": "blue", "position": 0, "upvotes": 0, "lastUpdated": "2026-01-01T00:00:00.000Z"}
            found[slug] = {"slug": slug, **about, **shown, "items": []}
        elif adds:
            asked = json.loads(self.body())
            self.writer(found[slug]["owner"])
            item = asked["item"]
            if f"{item['type']}s/{item['id']}" not in self.server.repositories:
                raise Refusal(404, f"{item['id']} is not on the Hub")
            if item["id"] in [held["id"] for held in found[slug]["items"]]:
                raise Refusal(409, "already in the collection")
            row = {"_id": NO_COMMIT, "position": len(found[slug]["items"]), **item}
            found[slug]["items"].append({**row, "note": {"text": asked["note"]}})
        self.json(found[slug])

    def delete(self) -> None:
        asked = json.loads(self.body())
        user = self.user()
        owner = asked.get("organization") or (user[0] if user else "")
        self.writer(owner)
        self.server.repositories.pop(f"{asked.get('type') or 'model'}s/{owner}/{asked['name']}", None)
        self.json({})

    def api(self, kind: str, repo_id: str, rest: str) -> None:
        name, _, after = rest.partition("/")
        write = self.command != "GET" and name in ("preupload", "commit", "branch", "tag")
        repository = self.repository(kind, repo_id, write=write)
        if name == "preupload":
            return self.preupload(repository, self.commit_at(repository, after))
        if name == "commit":
            return self.commit(repository, repo_id, after)
        if name in ("branch", "tag"):
            return self.reference(repository, name, after)
        if name == "refs":
            kinds = {"branches": repository.branches, "tags": repository.tags}
            listed = {
                key: [{"name": n, "ref": f"refs/{key}/{n}", "targetCommit": o} for n, o in refs.items()]
                for key, refs in kinds.items()
            }
            return self.json({**listed, "converts": []})
        revision, _, path = after.partition("/") if name else ("main", "", "")
        commit = self.commit_at(repository, revision or "main")
        if name in ("", "revision"):
            info = {"_id": NO_COMMIT, "id": repo_id, "modelId": repo_id, "sha": commit.oid, "tags": []}
            siblings = [{"rfilename": path} for path in sorted(commit.files)]
            visible = {
                "private": repository.private,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
            }
            return self.json({**info, **visible, "siblings": siblings, "cardData": {}})
        if name == "tree":
            return self.tree(commit, path)
        if name == "paths-info":
            body = self.body()
            asked = json.loads(body) if body[:1] == b"{" else parse_qs(body.decode())
            wanted = asked.get("paths") or []
            wanted = [wanted] if isinstance(wanted, str) else wanted
            folders = {str(p) for f in commit.files for p in Path(f).parents} - {"."}
            entries = [self.entry(p, commit.files[p]) for p in wanted if p in commit.files]
            return self.json(
                entries + [{"type": "directory", "path": p, "oid": NO_COMMIT} for p in wanted if p in folders]
            )
        if name == "commits":
            told = {"id": commit.oid, "message": "", "authors": [], "date": "2026-01-01T00:00:00.000Z"}
            return self.json([{**told, "title": title} for title in repository.titles(revision)])
        raise Refusal(404, f"no such page: {self.path}")

    def commit_at(self, repository: Repository, revision: str) -> Commit:
        commit = repository.find(revision)
        if commit is None:
            raise _not_found("RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def tree(self, commit: Commit, folder: str) -> None:
        recursive = self.query.get("recursive", ["false"])[0].lower() in ("true", "1")
        prefix = f"{folder}/" if folder else ""
        inside = {p: b for p, b in sorted(commit.files.items()) if p.startswith(prefix)}
        if folder and not inside:
            raise _not_found("EntryNotFound", f"{folder} does not exist")
        folders = {str(p) for f in inside for p in Path(f).parents} - {".", folder}
        found: list[dict[str, Any]] = [
            {"type": "directory", "path": p, "oid": NO_COMMIT, "size": 0} for p in sorted(folders)
        ]
        found += [self.entry(path, blob) for path, blob in inside.items()]
        self.json([e for e in found if recursive or "/" not in e["path"].removeprefix(prefix)])

    def entry(self, path: str, blob: Blob) -> dict[str, Any]:
        entry: dict[str, Any] = {"type": "file", "path": path, "size": len(blob.data), "oid": blob.oid[:40]}
        if blob.lfs:
            entry["lfs"] = {"oid": blob.oid, "size": len(blob.data), "pointerSize": 128}
        return entry

    def reference(self, repository: Repository, kind: str, name: str) -> None:
        refs = repository.branches if kind == "branch" else repository.tags
        asked = json.loads(self.body() or b"{}")
        with repository.lock:
            if self.command == "DELETE":
                if name == "main" or name not in refs:
                    raise Refusal(400 if name == "main" else 404, f"{kind} {name} cannot be deleted")
                del refs[name]
                return self.json({})
            start = asked.get("startingPoint") or "main" if kind == "branch" else name
            name = name if kind == "branch" else asked["tag"]
            if name in refs:
                raise Refusal(409, f"Reference already exists: {name}")
            refs[name] = self.commit_at(repository, start).oid
        self.json({})

    # --- uploads

    def preupload(self, repository: Repository, commit: Commit) -> None:
        answers = []
        for asked in json.loads(self.body())["files"]:
            old = commit.files.get(asked["path"])
            lfs = asked["path"].endswith(LFS_ENDINGS) and asked["size"] > 0
            answer = {"path": asked["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            answers.append(answer | ({"oid": old.oid} if old else {}))
        self.json({"files": answers, "commitOid": commit.oid})

    def lfs_batch(self, repo_id: str) -> None:
        asked = json.loads(self.body())
        answers = []
        for item in asked["objects"]:
            answer = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.server.lfs:
                answer["actions"] = {"upload": {"href": f"{self.server.url}/{repo_id}/lfs/{item['oid']}"}}
            answers.append(answer)
        self.json({"transfer": "basic", "objects": answers})

    def put_lfs(self, oid: str) -> None:
        data = self.body()
        if len(data) != int(self.headers["Content-Length"]):
            raise CutOff
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refusal(400, "the content does not have the digest that was announced")
        self.server.lfs[oid] = data
        self.json({})

    def lfs(self, oid: str) -> Blob:
        return Blob(self.server.lfs[oid], True)

    def commit(self, repository: Repository, repo_id: str, branch: str) -> None:
        lines = [json.loads(line) for line in self.body().splitlines() if line.strip()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        author = (self.user() or ("nobody", ""))[0]
        with repository.lock:
            if branch not in repository.branches:
                raise _not_found("RevisionNotFound", f"Invalid rev id: {branch}")
            head = repository.branches[branch]
            if header.get("parentCommit") not in (None, head):
                raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            files = dict(repository.commits[head].files)
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = Blob(base64.b64decode(value["content"]), False)
                elif line["key"] == "lfsFile":
                    data = self.server.lfs.get(value["oid"])
                    size = value.get("size")  # a copy has none
                    if data is None or value["algo"] != "sha256" or size not in (None, len(data)):
                        raise Refusal(400, f"LFS object of {value['path']} was not uploaded")
                    files[value["path"]] = Blob(data, True)
                elif line["key"] == "deletedFile":
                    if files.pop(value["path"], None) is None:
                        raise _not_found("EntryNotFound", "A file with this name doesn't exist")
                elif line["key"] == "deletedFolder":
                    prefix = value["path"].rstrip("/") + "/"
                    files = {path: blob for path, blob in files.items() if not path.startswith(prefix)}
                elif line["key"] != "header":
                    raise Refusal(400, f"unknown operation {line['key']}")
            made = repository.add(branch, files, header["summary"], author)
        self.json(
            {
                "success": True,
                "commitOid": made.oid,
                "commitUrl": f"{self.server.url}/{repo_id}/commit/{made.oid}",
            }
        )

    def validate_yaml(self) -> None:
        asked = json.loads(self.body())
        problems, warnings = check_card(asked["content"])
        if problems:
            return self.json({"errors": [{"message": p} for p in problems], "warnings": []}, status=400)
        self.json({"errors": [], "warnings": [{"message": w} for w in warnings]})

    # --- downloads

    def resolve(self, kind: str, repo_id: str, revision: str, path: str) -> None:
        commit = self.commit_at(self.repository(kind, repo_id), revision)
        blob = commit.files.get(path)
        told = {"X-Repo-Commit": commit.oid}
        if blob is None:
            raise Refusal(404, "Entry not found", {"X-Error-Code": "EntryNotFound", **told})
        if not blob.lfs:
            return self.send_file(blob, path, told | {"ETag": f'"{blob.oid}"'})
        size = {"X-Linked-Size": str(len(blob.data)), "X-Linked-ETag": f'"{blob.oid}"'}
        elsewhere = self.server.url.replace("127.0.0.1", "localhost")  # another host, as on the Hub
        self.reply(302, b"", told | size | {"Location": f"{elsewhere}/{repo_id}/lfs/{blob.oid}?file={path}"})

    def send_file(self, blob: Blob, path: str, headers: dict[str, str] | None = None) -> None:
        if self.command == "GET" and path:
            self.server.downloads.append(Path(path).name)
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first, size = int(start[1]) if start else 0, len(blob.data)
        told = {**(headers or {}), "Accept-Ranges": "bytes"}
        if start:
            told["Content-Range"] = f"bytes {first}-{size - 1}/{size}"
        self.reply(206 if start else 200, blob.data[first:], told)

    # --- plumbing

    def body(self) -> bytes:
        if self.body_read:
            return b""
        self.body_read = True
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def json(self, value: Any, status: int = 200) -> None:
        self.reply(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.body()  # a body left unread would be taken for the next request
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: self.send_at_most])
        if self.send_at_most is not None and self.send_at_most < len(body):
            raise CutOff


_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PIPELINES = ("translation", "text-classification", "text-generation", "feature-extraction", "fill-mask")


def check_card(text: str) -> tuple[list[str], list[str]]:
    """(errors, warnings) of a card's metadata, by the rules of the Hub's model cards."""
    match = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, re.DOTALL)
    if match is None:
        return [], ["empty or missing yaml metadata in repo card"]
    try:
        data = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        return [f"invalid yaml: {error}"], []
    if not isinstance(data, dict):
        return ["metadata must be a mapping"], []
    problems = []
    for key in ("tags", "datasets", "metrics"):
        values = data.get(key, [])
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            problems.append(f'"{key}" must be an array of strings')
        elif key == "datasets" and not all(_REPOSITORY.fullmatch(v) for v in values):
            problems.append('"datasets" must be names of data sets')
    languages = data.get("language", [])
    for language in [languages] if isinstance(languages, str) else languages:
        if not isinstance(language, str) or not re.fullmatch(
            r"[a-z]{2,3}(-\w+)?|code|multilingual", language
        ):
            problems.append(f'"language" must be ISO 639 codes, not {language!r}')
    for key in ("license", "library_name", "base_model", "pipeline_tag"):
        if key in data and not isinstance(data[key], str):
            problems.append(f'"{key}" must be a string')
    if data.get("pipeline_tag", _PIPELINES[0]) not in _PIPELINES:
        problems.append(f'"pipeline_tag" {data["pipeline_tag"]!r} is unknown')
    for index, model in enumerate(data.get("model-index", [])):
        if not isinstance(model.get("name"), str) or not isinstance(model.get("results"), list):
            problems.append(f'"model-index[{index}]" must have name and results')
            continue
        for result in model["results"]:
            named = isinstance(result.get("task", {}).get("type"), str)
            dataset = result.get("dataset", {})
            if not named or not all(isinstance(dataset.get(k), str) for k in ("type", "name")):
                problems.append('"model-index" results must name task.type, dataset.type and dataset.name')
            for metric in result.get("metrics") or [{}]:
                if not isinstance(metric.get("type"), str) or "value" not in metric:
                    problems.append('"model-index" metrics must have type and value')
    return problems, []
