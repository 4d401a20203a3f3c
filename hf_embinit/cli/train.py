"""`train`: runs a recipe, from an installed package or a clone."""

from __future__ import annotations

import argparse
import importlib
import runpy
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ..errors import UnknownNameError
from .command import Answer, Command

_PACKAGE = Path(__file__).parent.parent


def recipe_files() -> dict[str, Path]:
    """Name -> script of every recipe: of the package where it was installed, otherwise of the clone."""
    packed = _PACKAGE / "recipes"
    folder = packed if packed.is_dir() else _PACKAGE.parent / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def _train_flags(parser: ArgumentParser) -> None:
    parser.add_argument("recipe", help=", ".join(recipe_files()))
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="the recipe's own arguments; --help lists them",
    )


def _train(args: Namespace) -> Answer:
    files = recipe_files()
    if args.recipe not in files:
        raise UnknownNameError("recipe", args.recipe, files)
    importlib.import_module("accelerate")  # Trainer itself would say it late, and with a traceback
    sys.argv = [str(files[args.recipe]), *args.arguments]
    runpy.run_path(sys.argv[0], run_name="__main__")
    sys.exit()  # a recipe prints what it has to say itself


TRAIN = Command(
    summary="train by a recipe, such as `translate` or `classify`",
    description="Runs a recipe of this package in this process. `accelerate launch -m "
    "hf_embinit.recipes.translate` runs the same recipe in several.",
    examples=(
        "hf-embinit train translate --init glove_xavier",
        "hf-embinit train classify --task cola --model google-bert/bert-base-uncased --surgery reversed",
        "hf-embinit train translate --help",
    ),
    add_flags=_train_flags,
    run=_train,
)
