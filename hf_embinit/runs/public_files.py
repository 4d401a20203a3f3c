"""What of a run folder is published: path in the repository -> a file, or its content.

Weights as safetensors, tokenizer, configs, the code they name, record, figures and card. Never optimizer
states, pickles, checkpoints on the way, or names of folders of the machine that the run was made on.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunFolderError
from .record import RESULTS_NAME, RunRecord

_CONFIG = "config.json"
_CHECKPOINT = (
    _CONFIG,
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
_TOKENIZER = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "target_vocab.json",
    "segmenter.json",
    "chat_template.jinja",
)
_RUN = ("README.md", RESULTS_NAME, ".eval_results/*.yaml", "figures/*.png")
_CODE = "*_vanilla_transformer.py"
_PLACES = ("output_dir", "data_dir", "logging_dir", "resume_from_checkpoint")
"""Arguments that are always places on a machine."""
_LOCAL = re.compile(r"(~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]|~$")


def is_published(path: str) -> bool:
    """Whether a path of a repository is of a kind that is published, and so may be replaced or removed."""
    name = path.rpartition("/")[2]  # of a model in a sub-folder
    return any(fnmatch.fnmatch(path, pattern) for pattern in _RUN) or any(
        fnmatch.fnmatch(name, pattern) for pattern in (*_CHECKPOINT, *_TOKENIZER, _CODE)
    )


def model_folders(folder: Path) -> list[str]:
    """Where in a run folder its models are: `""`, or the sub-folders of a run that trained several."""
    if (folder / _CONFIG).is_file():
        return [""]
    found = (path.parent.name for path in folder.glob(f"*/{_CONFIG}"))
    return sorted(name for name in found if name != "init" and not name.startswith("checkpoint-")) or [""]


def models_files(folder: Path, models: Sequence[str]) -> dict[str, Path | bytes]:
    """`checkpoint_files` of each of the sub-folders `models`; code goes to the top, where `auto_map` finds
    it.
    """
    return {
        f"{model}/{name}" if model and not name.endswith(".py") else name: content
        for model in models
        for name, content in checkpoint_files(folder / model).items()
    }


def checkpoint_files(folder: Path) -> dict[str, Path | bytes]:
    """The model and the tokenizer of a folder, with the code that their configs name; safetensors alone.

    Raises `RunFolderError` for a folder without a config, without a tokenizer, or without safetensors.
    """
    files: dict[str, Path | bytes] = {
        path.name: path for pattern in _CHECKPOINT for path in sorted(folder.glob(pattern)) if path.is_file()
    }
    if _CONFIG not in files:
        raise RunFolderError(f"{folder} has no config.json: expected the folder of a saved model")
    if not any(name.endswith(".safetensors") for name in files):
        raise RunFolderError(
            f"{folder} has no model.safetensors, and pickles are not published: save the model with "
            "model.save_pretrained"
        )
    files |= _told(folder, files)
    tokenizer = tokenizer_files(folder)
    if not tokenizer:
        raise RunFolderError(f"{folder} has no tokenizer: save it there with tokenizer.save_pretrained")
    return files | tokenizer


def tokenizer_files(folder: Path) -> dict[str, Path | bytes]:
    """The tokenizer of a folder, with the code that its config names; empty without one."""
    files: dict[str, Path | bytes] = {
        path.name: path for pattern in _TOKENIZER for path in sorted(folder.glob(pattern)) if path.is_file()
    }
    return files | _told(folder, files)


def _told(folder: Path, files: Mapping[str, Path | bytes]) -> dict[str, Path | bytes]:
    """The configs among `files` without the folders of the machine, and the code that they name."""
    found: dict[str, Path | bytes] = {}
    for name in (_CONFIG, "tokenizer_config.json"):
        if name in files:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
            found.update({path.name: path for path in _code_files(folder, settings)})
            told = without_places(settings)
            if told != settings:
                found[name] = (json.dumps(told, indent=2, ensure_ascii=False) + "\n").encode()
    return found


def run_files(folder: Path, record: RunRecord, pages: Mapping[str, str]) -> dict[str, Path | bytes]:
    """The trained models of a run, its record, figures, and `pages` (the card and what goes with it)."""
    files = models_files(folder, model_folders(folder))
    files.update({f"figures/{path.name}": path for path in sorted((folder / "figures").glob("*.png"))})
    told = json.dumps(record.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return {**files, RESULTS_NAME: told.encode(), **{path: text.encode() for path, text in pages.items()}}


def public_record(record: RunRecord) -> RunRecord:
    """The record without the folders of the machine: of a path, the last part."""
    values = record.to_dict()
    arguments = {
        key: _last_part(value) if key in _PLACES and isinstance(value, str) else shorten(value)
        for key, value in values["arguments"].items()
    }
    named = {key: shorten(values[key]) for key in ("dataset", "tokenizer")}
    return RunRecord(**{**values, **named, "arguments": arguments})


def without_places(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config without the folders of the machine, in the few places where they stand; tokens are left
    alone.
    """
    told = dict(settings)
    for key in told:
        if key in ("_name_or_path", "name_or_path") or key.endswith("_file"):
            told[key] = shorten(told[key])
    if isinstance(told.get("embinit"), list):
        told["embinit"] = shorten(told["embinit"])
    return told


def shorten(value: Any) -> Any:
    """`value` with every string that is a path of this machine cut to its last part."""
    if isinstance(value, str):
        return _last_part(value) if _is_local(value) else value
    if isinstance(value, Mapping):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shorten(item) for item in value]
    return value


def _is_local(text: str) -> bool:
    """Whether a text is a path, not a Hub id, a name or a token: from a root, or a folder or file that is
    here.
    """
    if len(text) < 3 or "\n" in text or "://" in text:
        return False
    if _LOCAL.match(text):
        return True
    try:
        return ("/" in text or "\\" in text) and Path(text).exists()
    except OSError:  # too long for a path
        return False


def _last_part(text: str) -> str:
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1]


def _code_files(folder: Path, settings: Mapping[str, Any]) -> list[Path]:
    """The modules that `auto_map` names, with those that they import from beside them."""
    from transformers.dynamic_module_utils import get_relative_import_files

    found: dict[Path, None] = {}
    for entry in (settings.get("auto_map") or {}).values():
        for name in entry if isinstance(entry, list) else [entry]:
            module = folder / f"{str(name).split('.')[0]}.py"
            if name and "--" not in name:  # `owner/name--module.Class` lies in another repository
                if not module.is_file():
                    raise RunFolderError(f"{folder} lacks {module.name}, which its auto_map names")
                found.update(dict.fromkeys([module, *map(Path, get_relative_import_files(module))]))
    return list(found)
