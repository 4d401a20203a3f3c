"""The registry of initialisers. Standard library only.

An initialiser is a function that makes the rows `[R, D]` (float32) which its `InitContext` asks for:

    @register_initializer("xavier", summary="uniform", reference="Glorot & Bengio 2010, Eq. 16")
    def xavier(context: InitContext) -> Tensor: ...

The function's keyword-only arguments are the options of the initialiser; a value is checked against its
annotation (`bool`, `float`, `NotNegative`, `Literal[...]`, or one of these `| None`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

from ..arguments import check, checked, put_option, shown
from ..errors import InvalidArgumentError
from ..registry import Registry

F = TypeVar("F", bound=Callable[..., Any])

Purpose = Literal["table", "rows", "tokenizer", "refinement"]
"""What an initialiser makes: a whole `table` (rows beside an old one too), only such new `rows`, the rows of
another `tokenizer` from those of the old one, or a `refinement` of these (see `hf_embinit.retokenize`)."""
PURPOSES: dict[Purpose, str] = {
    "table": "a whole table",
    "rows": "rows for new tokens",
    "tokenizer": "rows for another tokenizer",
    "refinement": "better rows for another tokenizer",
}
"""What pages call a purpose."""

Needs = Literal[
    "vectors", "existing", "tokens", "tokenizer", "positions", "texts", "parallel", "dictionary", "donor"
]
"""What an initialiser reads: pre-trained vectors, the old table, token strings, the old tokenizer, the
position encodings of the model, text, pairs of sentences, pairs of words, a model with the new tokenizer."""


@dataclass(frozen=True)
class Initializer:
    """One registered initialiser: its name, what it makes and needs, and where it comes from."""

    name: str
    fn: Callable[..., Any]
    summary: str
    reference: str
    purpose: Purpose = "table"
    needs: frozenset[Needs] = frozenset()
    defaults: dict[str, Any] = field(default_factory=dict, hash=False)
    """Arguments that the name implies: `bert` stands for `vectors="bert"`, unless the caller gives others."""
    aliases: tuple[str, ...] = ()
    """Further names."""
    pieces: Callable[..., list[list[int]]] | None = None
    """For initialisers that average old rows: `pieces(context, **options)` gives the old ids of each row."""

    def __reduce__(self) -> tuple[Any, ...]:
        return get_initializer, (self.name,)  # a function that a decorator made has no name of its own

    @cached_property
    def options(self) -> dict[str, Any]:
        """Keyword options that a caller may give, with their defaults."""
        parameters = list(inspect.signature(self.fn).parameters.values())[1:]
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @property
    def _hints(self) -> dict[str, Any]:
        """The annotation of each parameter, also of a callable object and of a `functools.partial`."""
        try:
            parameters = inspect.signature(self.fn, eval_str=True).parameters
        except NameError as error:
            raise InvalidArgumentError(
                f"init {self.name!r}: an annotation of its function: {error}; import it where the function is"
            ) from None
        return {name: parameter.annotation for name, parameter in parameters.items()}

    def check_options(self, options: dict[str, Any]) -> None:
        """Raises `InvalidArgumentError` for an option that is not this initialiser's, or a wrong value."""
        hints = self._hints if options else {}
        for name, value in options.items():
            if name not in self.options:
                known = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
                raise InvalidArgumentError(
                    f"init {self.name!r} has no option {name!r}. Its options: {known}."
                )
            if value is not self.options[name]:
                check(f"init {self.name!r}: {name}", value, hints.get(name, Any))

    def __str__(self) -> str:
        also = f" (also {', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.name}{also}: {self.summary} ({self.reference})"


def _takes_context(fn: Callable[..., Any]) -> bool:
    try:
        inspect.signature(fn).bind_partial(None)
    except (TypeError, ValueError):  # nothing to call, or without a positional argument or any signature
        return False
    return True


INITIALIZERS: Registry[Initializer] = Registry("init")


@checked
def register_initializer(
    name: str,
    *,
    summary: str,
    reference: str,
    purpose: Purpose = "table",
    needs: Iterable[Needs] = (),
    defaults: dict[str, Any] | None = None,
    aliases: Iterable[str] = (),
    pieces: Callable[..., list[list[int]]] | None = None,
) -> Callable[[F], F]:
    """Decorator that registers a function under `name` and `aliases`.

    Raises `DuplicateNameError` for a name that is taken, and `InvalidArgumentError` for a name that is empty
    or has white space or one of `:`, `,`, `+` and `=`, which separate names from options and from each other.
    """
    for one in (name, *(aliases := tuple(aliases))):
        if not one or any(c.isspace() or c in ":,+=" for c in one):
            raise InvalidArgumentError(
                f"init name {one!r}: expected a name without white space, ':', ',', '+' and '='"
            )

    def register(fn: F) -> F:
        if not _takes_context(fn):
            raise InvalidArgumentError(
                f"init {name!r} registers {shown(fn)}: expected a function of a context"
            )
        fixed, also = dict(defaults or {}), tuple(aliases)
        record = Initializer(name, fn, summary, reference, purpose, frozenset(needs), fixed, also, pieces)
        INITIALIZERS.add(name, record, also)
        return fn

    return register


@checked
def get_initializer(name: str, *, purpose: Purpose | None = None) -> Initializer:
    """The record registered under `name`, whatever its purpose.

    Unknown names raise `UnknownNameError` with the nearest ones, of those that serve `purpose` if given.
    """
    return INITIALIZERS.get(name, lambda record: purpose in (None, record.purpose))


@checked
def table_initializer(name: str) -> Initializer:
    """The record of an initialiser of whole tables.

    Raises `UnknownNameError` for an unknown name, and `InvalidArgumentError` for an initialiser that makes
    rows beside a table.
    """
    record = get_initializer(name, purpose="table")
    if record.purpose != "table":
        names = ", ".join(r.name for r in list_initializers(purpose="table"))
        way = (
            "the rows of another tokenizer (use hf_embinit.replace_tokenizer)"
            if record.purpose in ("tokenizer", "refinement")
            else "rows beside an existing table (use hf_embinit.patch or expand_vocabulary)"
        )
        raise InvalidArgumentError(f"init {name!r} makes {way}; whole tables are made by: {names}")
    return record


def read_init(text: str, *, purpose: Purpose | None = None) -> tuple[str, dict[str, Any]]:
    """Name and options of an initialiser written as `mean_cov` or `mean_cov:scale=auto,...`, both checked.

    Values are read as JSON, else as texts. Raises `UnknownNameError`, with names that serve `purpose`, or
    `InvalidArgumentError`.
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise InvalidArgumentError(
                f"init {text!r}: expected name:option=value, such as mean_cov:scale=auto"
            )
        put_option(options, option, value, f"init {text!r}")
    get_initializer(name, purpose=purpose).check_options(options)
    return name, options


def read_inits(texts: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """`read_init` of each. Raises `InvalidArgumentError` for one that is given twice, too."""
    for text in texts:
        if texts.count(text) > 1:
            raise InvalidArgumentError(f"init {text!r} is given twice")
    return [read_init(text) for text in texts]


@checked
def list_initializers(pattern: str = "*", *, purpose: Purpose | None = None) -> list[Initializer]:
    """Records whose name matches a shell pattern (`"glove*"`), sorted by name; `str(record)` is one line."""
    return [r for r in INITIALIZERS.list(pattern) if purpose is None or r.purpose == purpose]
