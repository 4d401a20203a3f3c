"""Files of new tokens: one a line, or a list in YAML or JSON that says what each is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from ..arguments import FilePath, checked
from ..errors import DataNotFoundError, InvalidArgumentError
from ..foreign import NO_LINES, no_text, reading
from ..rows import Override, check_init

_KEYS = ("name", "description", "like", "init", "options")
_FLAGS = ("special", "normalized", "single_word", "lstrip", "rstrip")
_MADE_OF = ("description", "like", "init")


@checked
def read_tokens_file(
    file: FilePath,
) -> tuple[list[str | AddedToken], dict[str, Override]]:
    """The new tokens in a file and what single ones are made of, for `expand_vocabulary(..., overrides=)`.

    A `.yaml`, `.yml` or `.json` file holds a list; a text file of another ending has a token a line. An entry
    is a token, or a mapping with its `name` and one of `description` (a text: the mean of its tokens' rows),
    `like` (an old token or a list of them, whose rows are copied or averaged) and `init` (an initialiser's
    name, with its `options`); without one the token is made as all others are. `special: true` makes it a
    special token, and `normalized`, `single_word`, `lstrip` and `rstrip` are those of `AddedToken`.

    Raises `DataNotFoundError` for a file that is not there or has no token, `InvalidArgumentError` for a
    table, a `.jsonl` and an entry that says something else.
    """
    path = Path(file)
    if path.suffix in (".jsonl", *NO_LINES):
        raise InvalidArgumentError(
            f"--tokens_file {file}: a {path.suffix} file is not read; give one token a line in a .txt, or a "
            f"list in a .json or .yaml"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataNotFoundError(f"--tokens_file {file} {no_text(error)}") from error
    if path.suffix not in (".yaml", ".yml", ".json"):
        entries: Any = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    else:
        import yaml

        with reading(f"--tokens_file {file}", InvalidArgumentError):
            entries = yaml.safe_load(text)  # JSON is YAML, too
        if entries is not None and not isinstance(entries, list):
            raise InvalidArgumentError(f"--tokens_file {file} holds no list: write one entry a token")
    if not entries:
        raise DataNotFoundError(f"--tokens_file {file} has no token: write one a line")
    tokens: list[str | AddedToken] = []
    overrides: dict[str, Override] = {}
    for number, entry in enumerate(entries, 1):
        token, made_of = _entry(entry, f"--tokens_file {file}, entry {number}")
        if made_of is not None:
            overrides[str(token)] = made_of
        tokens.append(token)
    return tokens, overrides


def _entry(entry: Any, where: str) -> tuple[str | AddedToken, Override | None]:
    """A token and what it is made of."""
    if isinstance(entry, str):
        return entry, None
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidArgumentError(f"{where}: {entry!r} is neither a token nor a mapping with its name")
    if unknown := [str(key) for key in entry if key not in _KEYS + _FLAGS]:
        raise InvalidArgumentError(f"{where} has {unknown[0]!r}: expected {', '.join(_KEYS + _FLAGS)}")
    chosen = [key for key in _MADE_OF if key in entry]
    if len(chosen) > 1:
        raise InvalidArgumentError(f"{where} has {' and '.join(map(repr, chosen))}: give one of them")
    if "options" in entry and chosen != ["init"]:
        raise InvalidArgumentError(f"{where} has 'options', which belong to an 'init': name it")
    settings = {key: entry[key] for key in _FLAGS if key in entry}
    for key, value in settings.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{where}: {key} is {value!r}, expected true or false")
    token = AddedToken(entry["name"], **settings) if settings else entry["name"]
    return token, _override(entry, chosen, where)


def _override(entry: dict[str, Any], chosen: list[str], where: str) -> Override | None:
    if not chosen:
        return None
    key, value = chosen[0], entry[chosen[0]]
    several = key == "like" and isinstance(value, list) and all(isinstance(v, (str, int)) for v in value)
    if not value or not (isinstance(value, str) or several or (key == "like" and type(value) is int)):
        kind = "a token or a list of tokens" if key == "like" else "a text"
        raise InvalidArgumentError(f"{where}: {key} is {value!r}, expected {kind}")
    if key == "description":
        return "description", {"text": value}
    if key == "like":
        return "copy", {"of": value}
    options = entry.get("options") or {}
    if not isinstance(options, dict):
        raise InvalidArgumentError(f"{where}: options is {options!r}, expected a mapping")
    check_init(value, options)
    return value, options
