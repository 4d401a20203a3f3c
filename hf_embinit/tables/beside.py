"""Small files that a checkpoint has beside its weights, in a folder or on the Hub, and folders of modules."""

from __future__ import annotations

import glob
import logging
import shutil
from pathlib import Path

from transformers import PreTrainedModel

from ..arguments import FilePath
from ..errors import DataNotFoundError
from ..foreign import read_json
from ..hub import hub_snapshot

logger = logging.getLogger(__name__)

SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.spm", "*.tiktoken", "LICENSE*", "NOTICE*")
"""What a checkpoint has beside its weights."""
_BESIDE = (
    *("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "modules.json", "config_sentence_transformers.json"),
    *("sentence_bert_config.json", "1_Pooling/config.json", "2_Normalize/config.json"),
)
"""What processors and sentence-transformers keep beside a model, and neither model nor tokenizer saves."""


def copy_beside(source: Path, target: Path, templates: bool) -> None:
    """Copies what neither model nor tokenizer saves, and `target` lacks: sentence-transformers' modules among
    it, and with `templates` the chat templates of a tokenizer that is not saved anew."""
    for name in names_beside(source, templates):
        there, here = source / name, target / name
        if not here.exists():
            here.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(there, here)


def names_beside(folder: Path, templates: bool = True) -> list[str]:
    """The files in a folder that `copy_beside` copies, as paths in it."""
    found = list(_BESIDE)
    for path in [*module_folders(folder), *(["additional_chat_templates"] if templates else [])]:
        files = sorted(file for file in (folder / path).rglob("*") if file.is_file())
        found += [file.relative_to(folder).as_posix() for file in files]
    return [name for name in dict.fromkeys(found) if (folder / name).is_file()]


def module_patterns(folder: Path) -> list[str]:
    """What `hub_snapshot` takes for the modules of sentence-transformers, weights of their own included."""
    return [f"{glob.escape(path)}/*" for path in module_folders(folder)]


def folder_of(source: FilePath, model: PreTrainedModel) -> Path | None:
    """The folder that `model` was loaded from; of a Hub id, that of its small files at the model's commit.

    It is None, with a warning, where the Hub does not give them: a model that is made is saved all the same.
    """
    folder, name = Path(source), str(source)
    if folder.is_dir():
        return folder
    revision = getattr(model.config, "_commit_hash", None) if model.name_or_path == name else None
    try:
        folder = hub_snapshot(name, SMALL_FILES, revision=revision)
        modules = module_patterns(folder)
        return hub_snapshot(name, [*SMALL_FILES, *modules], revision=folder.name) if modules else folder
    except DataNotFoundError as error:
        logger.warning(
            "what processors and sentence-transformers keep beside %s is not copied, do it by hand: %s",
            name,
            str(error).strip(),
        )
        return None


def module_folders(folder: Path) -> dict[str, str]:
    """The folders of sentence-transformers' modules inside a folder, and the class of each."""
    modules = folder / "modules.json"
    listed = read_json(modules, list) if modules.is_file() else []
    named = [
        (Path(str(one.get("path") or "")), str(one.get("type")).rpartition(".")[2])
        for one in listed
        if isinstance(one, dict)
    ]
    return {
        path.as_posix(): kind
        for path, kind in sorted(named)
        if path.parts and ".." not in path.parts and not path.is_absolute()
    }
