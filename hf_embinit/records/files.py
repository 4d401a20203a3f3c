"""The files of a run folder that may be published: those that the run listed when it was finished.

A run writes `files.json` with the digest of its weights as safetensors, tokenizer, configs, the code that
they name, and figures. Nothing else leaves the folder: no optimizer state, no pickle, no checkpoint on the
way, nothing that a link points to.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ..disk import check_place, writing
from ..errors import RunFolderError
from ..files import file_sha256
from ..foreign import read_json
from .places import without_places
from .writing import write_json

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.json"
"""The file of a run's record."""
FILES_NAME = "files.json"
_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_WHOLE = "model.safetensors"
_CHECKPOINT = (_CONFIG, "generation_config.json", _WHOLE, _INDEX)
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "target_vocab.json",
    "segmenter.json",
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "spm.model",
    "spm_char.model",
    "source.spm",
    "target.spm",
    "bpe.codes",
    "byte_maps.json",
    "dict.txt",
    "emoji.json",
    "entity_vocab.json",
    "normalizer.json",
    "prophetnet.tokenizer",
    "vocab-src.json",
    "vocab-tgt.json",
    "word_pronunciation.json",
    "word_shape.json",
)
_TERMS = [f"{name}{ending}" for name in ("LICENSE", "NOTICE") for ending in ("", ".md", ".txt")]
"""What others must be given with a model."""
_ENDINGS = (".jinja", ".json", ".model", ".safetensors", ".txt")
"""Endings of what processors and the modules of sentence-transformers keep, without pickles."""
_TELLING = (_CONFIG, "tokenizer_config.json")
"""Files that name code, and folders of this machine."""


@dataclass(frozen=True)
class RunFiles:
    """The publishable files of a run: path in the repository -> a file, or its content."""

    models: list[str]
    """Sub-folders with the models; `[""]` for the one model of the folder itself."""
    trained: dict[str, Path | bytes]
    initialised: dict[str, Path | bytes]
    """Files of the model before step 1; empty when the run kept none."""
    figures: list[str]
    """Those of `trained` that are figures."""


def declare_files(folder: Path) -> None:
    """Writes `files.json`: the path and the digest of everything of a run that may be published."""
    figures = (f"figures/{path.name}" for path in sorted((folder / "figures").glob("*.png")))
    listed = [*_model_files(folder), *(path for path in figures if _is_own(folder, path))]
    write_json(folder / FILES_NAME, {path: f"sha256:{file_sha256(folder / path)}" for path in listed})


def run_files(folder: Path) -> RunFiles:
    """The publishable files of a finished run: those that its `files.json` lists, unchanged since.

    In a folder without that list: the models under the names that transformers gives their files, and no
    figures. Raises `RunFolderError` for files that are missing, changed, links or outside of the folder, and
    for a folder without a config, a tokenizer or safetensors.
    """
    if (folder / FILES_NAME).exists():
        listed = _declared(folder)
    else:
        if (folder / RESULTS_NAME).exists():
            logger.warning("%s has no %s: its models are published without figures.", folder, FILES_NAME)
        listed = list(_model_files(folder))
    trained = [path for path in listed if not path.startswith("init/")]
    before = [path.removeprefix("init/") for path in listed if path.startswith("init/")]
    inside = sorted(p.removesuffix(f"/{_CONFIG}") for p in trained if re.fullmatch(f"[^/]+/{_CONFIG}", p))
    models = [""] if _CONFIG in trained else inside  # beside a model lie modules of sentence-transformers
    if not models:
        raise RunFolderError(f"{folder} has no config.json: expected the folder of a saved model")
    for model in models:
        _check_complete(folder, model, trained)
        if before:
            _check_complete(folder / "init", model, before)
    return RunFiles(
        models,
        _told(folder, trained),
        _told(folder / "init", before),
        [path for path in trained if path.startswith("figures/")],
    )


def _declared(folder: Path) -> list[str]:
    """The paths in `files.json`. Raises `RunFolderError` when one of them is not what the run wrote."""
    way_out = f"Put back what the run wrote, or delete {FILES_NAME} to publish the models without figures."
    listed = read_json(folder / FILES_NAME, error=RunFolderError)
    for path, digest in listed.items():
        if not re.fullmatch(r"[^/\\:\0]+(/[^/\\:\0]+)*", path) or {".", ".."} & set(path.split("/")):
            raise RunFolderError(f"{folder / FILES_NAME} lists {path!r}, which is not a path in the folder")
        if not _is_own(folder, path):
            kind = "a link or no file" if (folder / path).exists() else "missing"
            raise RunFolderError(f"{folder / path} is {kind}, but {FILES_NAME} lists it. {way_out}")
        if digest != f"sha256:{file_sha256(folder / path)}":
            raise RunFolderError(f"{folder / path} was changed after the run. {way_out}")
    return list(listed)


def _is_own(folder: Path, path: str) -> bool:
    """Whether `path` is a file inside the folder, and no part of the path is a link."""
    parts = path.split("/")
    on_the_way = (folder.joinpath(*parts[: n + 1]) for n in range(len(parts)))
    return (folder / path).is_file() and not any(place.is_symlink() for place in on_the_way)


def check_report_folder(folder: str | Path, entry: str, names: Sequence[str] = ()) -> None:
    """Raises `RunFolderError` for a folder in which a report would replace what is no older one.

    That is a `results.json` without this entry, and without any a file or folder of these names. Raises
    `FileWriteError` where nothing can be written.
    """
    with writing(f"--output_dir {folder}"):
        check_place(Path(folder))
    results = Path(folder) / RESULTS_NAME
    if results.exists():
        if entry not in read_json(results, error=RunFolderError):
            raise RunFolderError(f"--output_dir {folder} holds the results of another run: name another")
        return
    for name in names:
        if (Path(folder) / name).exists():
            raise RunFolderError(
                f"--output_dir {folder} holds {name}, and no older report: "
                "name another folder, or move it away"
            )


def model_folders(folder: Path) -> list[str]:
    """Where in a run folder its models are: `""`, or the sub-folders of a run that trained several."""
    if (folder / _CONFIG).is_file():
        return [""]
    names = (path.parent.name for path in folder.glob(f"*/{_CONFIG}"))
    return sorted(name for name in names if name != "init" and not name.startswith("checkpoint-")) or [""]


def _model_files(folder: Path) -> Iterable[str]:
    """Paths of the models of a run, trained and before step 1, with their tokenizers."""
    for place in ("", "init/"):
        for model in model_folders(folder):
            inside = f"{place}{model}/".lstrip("/") if model else place
            for name in _names(folder / inside):
                if _is_own(folder, inside + name):
                    yield inside + name


def tokenizer_names(folder: Path) -> list[str]:
    """The files of a tokenizer in a folder, with the code that its config names."""
    return [name for name in _names(folder) if name in _TOKENIZER or name.endswith(".py")]


def _names(folder: Path) -> list[str]:
    """The files of a model, its tokenizer, its processor and its modules of sentence-transformers in a
    folder, with the code that configs name, and what its rows are made of."""
    from ..tables import names_beside

    names = [*_CHECKPOINT, *_TOKENIZER, *sorted(path.name for path in folder.glob(_coefficients()))]
    names += [name for name in names_beside(folder) if name.endswith(_ENDINGS)]
    names += _TERMS
    if (folder / _INDEX).is_file():
        shards = read_json(folder / _INDEX, error=RunFolderError).get("weight_map")
        shards = sorted(set(map(str, shards.values()))) if isinstance(shards, dict) else []
        names += [name for name in shards if _SHARD.fullmatch(name)]
    for name in _TELLING:
        if (folder / name).is_file():
            names += _code_names(folder, read_json(folder / name, error=RunFolderError))
    return [name for name in dict.fromkeys(names) if (folder / name).is_file()]


def _coefficients() -> str:
    """Pattern of the files that say what rows were made of."""
    from ..retokenize import COEFFICIENTS

    return COEFFICIENTS.replace(".", "*.")


def _check_complete(folder: Path, model: str, listed: Sequence[str]) -> None:
    """Raises `RunFolderError` when a model cannot be loaded from the files that are listed."""
    from ..tables import names_beside

    place = folder / model
    names = {path.rpartition("/")[2] for path in listed if path.rpartition("/")[0] == model}
    if _CONFIG not in names:
        raise RunFolderError(f"{place} has no config.json: expected the folder of a saved model")
    others = _coefficients()
    weights = [
        path for path in listed if path.endswith(".safetensors") and not fnmatch(Path(path).name, others)
    ]
    if not any(path.rpartition("/")[0] == model for path in weights):
        raise RunFolderError(
            f"{place} has no model.safetensors, and pickles are not published: "
            "save the model with model.save_pretrained"
        )
    whole = {Path(path).parent for path in weights}
    for part in (Path(name).parent for name in names_beside(place) if name.endswith(".bin")):
        if model / part not in whole:
            raise RunFolderError(
                f"{place / part} has no safetensors, and pickles are not published: save the model anew "
                "with sentence-transformers"
            )
    if not names & {"tokenizer.json", "tokenizer_config.json"}:
        raise RunFolderError(f"{place} has no tokenizer: save it there with tokenizer.save_pretrained")
    for name in names & set(_TELLING):
        for module in _code_names(place, read_json(place / name, error=RunFolderError)):
            if module not in names:
                raise RunFolderError(f"{place} lacks {module}, which its auto_map names")


def _told(folder: Path, listed: Iterable[str]) -> dict[str, Path | bytes]:
    """Path in the repository -> file, configs without folders of this machine.

    Code goes to the top, where `auto_map` finds it.
    """
    contents: dict[str, Path | bytes] = {}
    for path in listed:
        name = path.rpartition("/")[2]
        contents[name if name.endswith(".py") else path] = folder / path
        if name in _TELLING:
            settings = read_json(folder / path, error=RunFolderError)
            told = without_places(settings)
            if told != settings:
                contents[path] = (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()
    return contents


def _code_names(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """The modules that `auto_map` names, with those that they import from beside them."""
    from transformers.dynamic_module_utils import get_relative_import_files

    named = settings.get("auto_map")
    modules: list[str] = []
    for entry in named.values() if isinstance(named, dict) else ():
        for name in entry if isinstance(entry, list) else [entry]:
            module = f"{str(name).split('.')[0]}.py"
            if name and re.fullmatch(r"\w+\.py", module):  # `owner/name--module.Class` lies elsewhere
                modules.append(module)
                if (folder / module).is_file():
                    modules += [Path(file).name for file in get_relative_import_files(folder / module)]
    return list(dict.fromkeys(modules))
