"""`publish_embeddings`: one embedding table with its tokens and its manifest as a repository of the Hub."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save
from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import FilePath, Text, Tokenizer, checked
from ..errors import InvalidArgumentError, PublishError
from ..hub import Branch, HubRepository, load_pretrained_tokenizer
from ..manifest import package_version, read_manifest
from ..measures import check_table, embedding_statistics
from ..records import shorten, tokenizer_names, without_places
from ..tables import EmbeddingTables
from ..tokens import vocabulary
from ..vectors import PretrainedVectors, load_vectors, rows_digest
from .cards import embeddings_page
from .publishing import Publication, check_readme, published_events, published_license

_TENSOR = "embeddings.weight"
_CONFIG = "config.json"


@checked
def publish_embeddings(
    source: PreTrainedModel | PretrainedVectors | Tensor | FilePath,
    repo_id: Text,
    *,
    tokenizer: Tokenizer | None = None,
    table: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
) -> Publication:
    """Publishes one table `[V, D]` as safetensors, with its tokenizer, its manifest and a card.

    `load_vectors(repo_id)` and `--vectors user/name` read it. `source` is a model or a tensor (which need
    `tokenizer=`), the folder or Hub id of a checkpoint, a file of vectors, or vectors. `table` chooses one of
    several by name or pattern (`"*decoder.embed_tokens*"`); the default is the input table, of an
    encoder-decoder with two vocabularies the source's. The other arguments are those of `publish`. It is one
    commit, and nothing is changed when it fails.

    Raises `InvalidArgumentError` when tokens and rows do not fit together, and `PublishError`.
    """
    request = None
    if not isinstance(source, (PreTrainedModel, Tensor)):
        source = load_vectors(source, table=table)
        request = (source.provenance or {}).get("request")
    name, chosen, matrix, events, tokenizer = _read(source, tokenizer, table)
    tokenizer, tokens = _one_sided(tokenizer, _side(chosen))
    if len(tokens) > len(matrix):
        raise InvalidArgumentError(
            f"the tokenizer has {len(tokens)} tokens and the table of {name} {len(matrix)} rows: give the "
            "tokenizer that the table was made for"
        )
    matrix = matrix.detach().to("cpu").contiguous()
    digest = rows_digest(tokens, matrix[: len(tokens)].float())
    extract = {
        "event": "extract",
        "from": name,
        "table": chosen,
        "digest": digest,
        "version": package_version(),
    }
    if request is not None:
        extract["request"] = request
    check_table(matrix.float(), "source")
    statistics = embedding_statistics(matrix.float())
    config: dict[str, Any] = {
        "vocab_size": len(matrix),
        "hidden_size": matrix.shape[1],
        "embinit": [*shorten(events), extract],
    }
    repository = HubRepository(repo_id, private=private, token=token)
    main = repository.main()
    if not overwrite:
        same = {key: extract[key] for key in ("event", "table", "digest")}
        _check_free(repository, main, same, f"these rows of {chosen} of {name}")
        license = license or published_license(repository, main)
    card = embeddings_page(repository.repo_id, config["embinit"], statistics, digest, license)
    main.add(
        {
            **_tokenizer_files(tokenizer),
            _CONFIG: (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
            "model.safetensors": save({_TENSOR: matrix}, metadata={"format": "pt"}),
            "README.md": card.encode(),
        }
    )
    commit, _ = repository.commit(main, None, f"Embeddings: {chosen} of {name}")
    return Publication(repository.repo_id, repository.url, commit, None)


def prepare_vectors_push(
    repo_id: str, request: str, *, private: bool | None = None, token: str | None = None
) -> None:
    """Checks before vectors are trained that they can be published as `repo_id`.

    `request` is the digest of all that decides on the rows, which `PretrainedVectors.provenance` has under
    that name. Raises `PublishError` when the repository holds anything but the vectors of an earlier run of
    the same request.
    """
    repository = HubRepository(repo_id, private=private, token=token)
    same = {"event": "extract", "request": request}
    _check_free(repository, repository.main(), same, "vectors of this corpus and these settings")


def _check_free(repository: HubRepository, main: Branch, same: Mapping[str, Any], what: str) -> None:
    """Raises `PublishError` when the repository holds something whose last event is not the `same`."""
    check_readme(repository, main)
    if main.paths - {".gitattributes", "README.md"} and not _same(repository, main, same):
        raise PublishError(
            f"{repository.repo_id} is taken: it holds something other than {what}. Choose another name, or "
            "replace it with overwrite=True."
        )


def _read(
    source: Any, tokenizer: Any, table: str | None
) -> tuple[str, str, Tensor, list[dict[str, Any]], Any]:
    """Name, table, values `[V, D]`, manifest and tokenizer of a source."""
    if isinstance(source, (PreTrainedModel, Tensor)) and tokenizer is None:
        raise InvalidArgumentError(f"a {type(source).__name__} has no tokens: give tokenizer=")
    if isinstance(source, PreTrainedModel):
        tables = EmbeddingTables(source)
        named = [t for t in tables.input_tables if table is None or fnmatch(t.name, table)]
        if not named:
            known = ", ".join(t.name for t in tables.input_tables)
            raise InvalidArgumentError(f"table={table!r} names none of the input tables: {known}")
        name = shorten(getattr(source.config, "_name_or_path", "") or "") or type(source).__name__
        return name, named[0].name, tables.read(named[0]), read_manifest(source), tokenizer
    if isinstance(source, Tensor):
        if source.ndim != 2 or not source.is_floating_point() or source.is_meta:
            raise InvalidArgumentError(
                f"source is a tensor of {source.dtype} {list(source.shape)} on {source.device}, expected "
                f"floats [V, D] that have values"
            )
        return "a tensor", table or _TENSOR, source, [], tokenizer
    vectors: PretrainedVectors = source
    name = shorten(vectors.name)
    chosen = str(vectors.report.get("table") or _TENSOR)
    if "table" not in vectors.report:  # a file of vectors: words
        if vectors.family != "words":
            raise InvalidArgumentError(f"{name} are pieces of a tokenizer: give its checkpoint, or a tensor")
        tokenizer = tokenizer or _word_tokenizer(vectors.tokens)
        if vocabulary(tokenizer)[: len(vectors)] != vectors.tokens:
            raise InvalidArgumentError(
                f"tokenizer= numbers its tokens otherwise than {name} its rows: leave it out, and one of the "
                f"words is made, or give the rows in its order as a tensor"
            )
        return name, chosen, vectors.matrix, [], tokenizer
    if tokenizer is None:
        tokenizer = load_pretrained_tokenizer(
            vectors.name, f"the tokenizer of {name}", revision=vectors.revision or "main"
        )
    if vocabulary(tokenizer, _side(chosen))[: len(vectors)] != vectors.tokens:
        raise InvalidArgumentError(
            f"the rows of {name} are not numbered by its tokenizer without gaps: give the model itself, "
            "loaded with from_pretrained, and tokenizer="
        )
    folder_or_file = Path(vectors.name).expanduser()
    events = read_manifest(
        folder_or_file if folder_or_file.is_dir() else vectors.name, revision=vectors.revision
    )
    return name, chosen, vectors.matrix, events, tokenizer


def _side(table: str) -> Literal["source", "target"]:
    """The side that a table is of, for models with two vocabularies."""
    return "target" if "decoder" in table.split(".") else "source"


def _one_sided(tokenizer: Any, side: Literal["source", "target"]) -> tuple[Any, list[str]]:
    """The tokenizer and its tokens in row order; one with two vocabularies is reduced to one side."""
    tokens = vocabulary(tokenizer, side)
    if not getattr(tokenizer, "separate_vocabs", False):
        return tokenizer, tokens
    language = tokenizer.target_lang if side == "target" else tokenizer.source_lang
    attached = {"source": tokenizer.attached[side]} if side in tokenizer.attached else None
    one = type(tokenizer)(
        {token: row for row, token in enumerate(tokens)},
        None,
        tokenizer.segmenter,
        segmenter_name=tokenizer.segmenter_name,
        source_lang=language,
        attached=attached,
    )
    return one, tokens


def _word_tokenizer(words: list[str]) -> Any:
    """A tokenizer without an unknown token whose tokens are `words`, in this order."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if len(set(words)) != len(words):
        raise InvalidArgumentError("the words of the vectors are not all different")
    backend = Tokenizer(models.WordLevel({word: row for row, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def _tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found = {name: (Path(folder) / name).read_bytes() for name in tokenizer_names(Path(folder))}
    name = "tokenizer_config.json"
    if name in found:
        settings = without_places(json.loads(found[name]))
        found[name] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return found


def _same(repository: HubRepository, main: Branch, same: Mapping[str, Any]) -> bool:
    """Whether the last event of what a repository holds has the same values."""
    last = next(reversed(published_events(repository, main)), None)
    return isinstance(last, dict) and all(last.get(key) == value for key, value in same.items())
