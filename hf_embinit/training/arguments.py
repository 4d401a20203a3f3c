"""Command lines of recipes: dataclasses of flags, presets below them, and an optional file of settings."""

from __future__ import annotations

import difflib
import hashlib
import io
import json
import os
import re
import sys
from argparse import Action, ArgumentDefaultsHelpFormatter, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any

from huggingface_hub.errors import StrictDataclassError
from transformers import HfArgumentParser

from ..arguments import (
    AtLeastTwo,
    Count,
    CountOrZero,
    NotNegative,
    Text,
    TrainingSeed,
    Wanted,
    check,
    check_flags,
)
from ..disk import disk_problem
from ..errors import EmbinitError, InvalidArgumentError
from ..foreign import reading
from ..interrupts import Terminated, terminating
from ..records import NO_EFFECT, remove_empty_runs

_AS_IN_RUN_GLUE = {
    "model": ["model_name_or_path"],
    "tokenizer": ["tokenizer_name"],
    "dataset": ["dataset_name"],
    "dataset_config": ["dataset_config_name"],
    "task": ["task_name", "dataset_name"],
}
"""Flags of recipes and their names in transformers' own examples, which are read too."""

_OF_TRANSFORMERS_4 = {
    "evaluation_strategy": "--eval_strategy",
    "group_by_length": "--train_sampling_strategy group_by_length",
    "logging_dir": "the environment variable TENSORBOARD_LOGGING_DIR",
    "no_cuda": "--use_cpu",
    "overwrite_output_dir": "another --output_dir",
    "push_to_hub_model_id": "--hub_model_id",
    "warmup_ratio": "--warmup_steps, which takes a share below 1,",
}
"""Arguments that version 5 dropped, and what does the same."""


class _Parser(HfArgumentParser):
    """Reads every flag under its name in transformers' examples, too; its value keeps our name."""

    def add_argument(self, *names: Any, **settings: Any) -> Action:
        usual = _AS_IN_RUN_GLUE.get(str(names[0]).removeprefix("--"), [])
        also = [f"--{name}" for u in usual for name in (u, u.replace("_", "-"))]
        return super().add_argument(*names, *also, **settings)


class _HelpFormatter(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """Shows all defaults but None, and the recipe's docstring with its line breaks."""

    def _get_help_string(self, action: Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def flag(default: Any, text: str, *, choices: Sequence[str] | None = None) -> Any:
    """A field of a dataclass of arguments, with its default and its text for `--help`."""
    metadata: dict[str, Any] = {"help": text}
    if choices is not None:
        metadata["choices"] = list(choices)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def default_folder(recipe: str, *parts: str | None, seed: int) -> str:
    """A default `--output_dir`: `runs/<recipe>/<part>-<part>-seed<seed>`.

    Of a path or Hub id the last name stands there, with _ for what a folder may not have in its name
    everywhere; parts that are None or empty are left out.
    """
    names = [re.sub(r"[^\w.+-]+", "_", part.rstrip("/").split("/")[-1]) for part in parts if part]
    return f"runs/{recipe}/{'-'.join(names)}-seed{seed}"


def parse_arguments(
    dataclass_types: Sequence[Any],
    preset: Callable[[Namespace], dict[str, Any]],
    *,
    description: str,
    argv: Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """One instance of each dataclass, from flags over an optional settings file over a preset.

    `python recipe.py [settings.yaml|settings.json] [--flag value ...]`: what a flag gives wins over the file,
    the file over `preset(known)`, which sees the values given so far (`known.dataset`, ...) and returns the
    defaults that go with them. A flag or key that does not exist, a value of the wrong type, and a list that
    is given twice end the program with one line and status 2.
    """
    parser = _Parser(
        list(dataclass_types), description=description, formatter_class=_HelpFormatter, allow_abbrev=False
    )
    parser.usage = "%(prog)s [settings.yaml | settings.json] [--flag value ...]"
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = {action.dest: action for action in parser._actions}
    flags |= {u: flags[name] for name, usual in _AS_IN_RUN_GLUE.items() if name in flags for u in usual}
    parser.set_defaults(**{name: True for name in _ALWAYS if name in flags})
    plain: dict[str, Any] = {}
    for action in parser._actions[1:]:  # the first is --help; `--no_x` comes after the `--x` of its name
        plain.setdefault(action.dest, action.default)
    try:
        settings: dict[str, Any] = {}
        if argv and not argv[0].startswith("-"):
            settings = _read_settings(Path(argv.pop(0)), flags)
        for action in parser._actions:
            if action.nargs in ("+", "*") and _times(action, argv) > 1:
                flag = action.option_strings[0]
                raise InvalidArgumentError(
                    f"{flag} is given twice and only the last would count: put all after one"
                )
        parser.set_defaults(**settings)
        for name in settings:
            flags[name].required = False
        known, unknown = parser.parse_known_args(argv)
        if unknown:
            raise InvalidArgumentError(_unknown_flag(unknown, flags))
        brought = preset(known)
        epochs = flags.get("num_train_epochs")
        if epochs is not None and ("num_train_epochs" in settings or _times(epochs, argv)):
            brought.pop("max_steps", None)  # who asks for epochs gets them
        if "output_dir" in {*brought} - {*settings}:
            parser.set_defaults(**{**plain, **brought})
            usual = vars(parser.parse_args([]))
            parser.set_defaults(**settings)
            brought["output_dir"] = _folder(brought["output_dir"], vars(parser.parse_args(argv)), usual)
        parser.set_defaults(**{**brought, **settings})
        _check_strategies(parser.parse_args(argv))
        parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
        for part in parsed:
            _check_values(part)
        return parsed
    except (EmbinitError, ValueError, ImportError, OSError) as error:  # transformers' may have several lines
        parser.exit(2, f"{parser.prog}: error: {' '.join(str(error).split())}\n")


def _times(action: Action, argv: Sequence[str]) -> int:
    """How often a flag is given."""
    return sum(word.split("=")[0] in action.option_strings for word in argv)


def _check_strategies(given: Namespace) -> None:
    """Raises `InvalidArgumentError` where transformers names a flag that was not given, and no way out."""
    if getattr(given, "load_best_model_at_end", False):
        evaluates, saves = (
            getattr(value, "value", value) for value in (given.eval_strategy, given.save_strategy)
        )
        if saves not in (evaluates, "best") or evaluates == "no":
            raise InvalidArgumentError(
                f"--eval_strategy {evaluates} with --save_strategy {saves}: the best model is loaded at the "
                "end, so it must be saved where it is evaluated; give both `epoch` or `steps`, or "
                "--load_best_model_at_end False"
            )


_ALWAYS = ("do_train", "do_eval", "do_predict")
"""Flags of transformers' examples that a recipe reads and needs not."""
BelowOne = Annotated[float, Wanted("a number from 0 to below 1", lambda x: 0 <= x < 1)]
_OF_TRANSFORMERS: dict[str, Any] = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), Count),
    "gradient_accumulation_steps": Count,
    **dict.fromkeys(("save_total_limit", "eval_accumulation_steps", "generation_num_beams"), Count | None),
    "generation_max_length": AtLeastTwo | None,
    "dataloader_num_workers": CountOrZero,
    "dataloader_prefetch_factor": Count | None,
    "batch_eval_metrics": Annotated[bool, Wanted("False: a score is of all texts together", lambda b: not b)],
    "dataloader_drop_last": Annotated[bool, Wanted("False: a score is of all texts", lambda b: not b)],
    "eval_do_concat_batches": Annotated[bool, Wanted("True: a score is of all texts together", bool)],
    "seed": TrainingSeed,
    "data_seed": TrainingSeed | None,
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs"), NotNegative),
    **dict.fromkeys(("adam_epsilon", "warmup_steps"), NotNegative),
    "neftune_noise_alpha": NotNegative | None,
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor"), BelowOne),
    **dict.fromkeys(_ALWAYS, Annotated[bool, Wanted("True: a recipe trains and scores in one run", bool)]),
    "max_steps": Annotated[int, Wanted("1 or more, or -1 to go by epochs", lambda n: n == -1 or n > 0)],
    "output_dir": Text | None,
}
"""What transformers' own arguments must be, where it would notice late or not at all."""


def _check_values(part: Any) -> None:
    if type(part).__module__.startswith("transformers."):
        for name, hint in _OF_TRANSFORMERS.items():
            if hasattr(part, name):  # some are of generation alone
                check(name, getattr(part, name), hint, as_flag=True)
    else:
        check_flags(part)


def run_main(main: Callable[[], None]) -> None:
    """Runs a recipe, and ends it with one sentence and status 1 for errors that a user can mend.

    These are the errors of hf_embinit, its tokenizers and configurations, and of the disk. A terminal that
    lacks the letters of a text shows escapes. SIGTERM ends it as Ctrl-C does, with status 143.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with terminating():
            main()
    except EmbinitError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt as told:
        ended = isinstance(told, Terminated)
        sys.stderr.write(
            f"{'told to end' if ended else 'interrupted'}; a recipe with --resume_from_checkpoint goes on "
            "from its last checkpoint by `--resume_from_checkpoint last`, any other by the same command\n"
        )
        sys.exit(143 if ended else 130)  # as shells have it for SIGTERM and SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush finds no pipe, either
        sys.exit(1)
    except StrictDataclassError as error:  # a config that cannot work
        sys.exit(f"error: {error.__cause__ or error}")
    except Exception as error:
        from ..models import TokenizerError

        sentence = str(error) if isinstance(error, TokenizerError) else disk_problem(error)
        if sentence is None:
            raise
        sys.exit(f"error: {sentence}")
    finally:
        remove_empty_runs()


_IN_NAME = {"dataset", "task", "model", "tokenizer", "init", "inits", "surgery", "seed", "twin_seeds"}
_IN_NAME |= {"output_dir"}
"""Flags that a default `--output_dir` names, or that change with it."""


def _folder(folder: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """A default `--output_dir`, with a digest of the flags that differ from their defaults.

    Flags that are in its name do not count, but for paths and Hub ids, of which the last part alone is there.
    Runs with other settings so get other folders.
    """
    changed = {
        name: str(value)
        for name, value in given.items()
        if name not in NO_EFFECT
        and str(value) != str(usual.get(name))
        and (name not in _IN_NAME or ("/" in str(value) and name != "output_dir"))
    }
    if not changed:
        return folder
    return f"{folder}-{hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]}"


def _read_settings(path: Path, flags: dict[str, Any]) -> dict[str, Any]:
    if path.suffix not in {".json", ".yaml", ".yml"}:
        raise InvalidArgumentError(
            f"{str(path)!r} is neither a flag nor a .json or .yaml file of settings; anything else comes "
            "after its flag (--help lists them)"
        )
    if not path.is_file():
        raise InvalidArgumentError(f"the settings file {str(path)!r} does not exist")
    with reading(f"the settings file {str(path)!r}", InvalidArgumentError):
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            settings = json.loads(text)
        else:
            import yaml

            settings = yaml.safe_load(text)
    if not isinstance(settings, dict):
        raise InvalidArgumentError(f"{str(path)!r} must hold one mapping of flag names to values")
    found: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in flags:
            raise InvalidArgumentError(f"{str(path)!r}: " + _unknown_flag([f"--{key}"], flags))
        name = flags[key].dest
        if name in found:
            raise InvalidArgumentError(f"{str(path)!r} gives --{name} twice, once as {key!r}: leave one out")
        found[name] = value
    return found


def _unknown_flag(unknown: list[str], flags: dict[str, Any]) -> str:
    name = unknown[0].split("=")[0]
    key = name.lstrip("-").replace("-", "_")
    if key in _OF_TRANSFORMERS_4:
        return f"{name!r} is an argument of transformers 4: use {_OF_TRANSFORMERS_4[key]} now"
    close = difflib.get_close_matches(key, flags, n=3, cutoff=0.6)
    hint = f" Did you mean: {', '.join('--' + c for c in close)}?" if close else ""
    return f"unknown argument {name!r}.{hint} --help lists all of them."
