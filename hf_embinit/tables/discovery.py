"""Finds every tensor of a model that has one entry per vocabulary row. Writes nothing.

`V` rows of a vocabulary, `D` width. The tensors decide: two places are tied when they hold the same tensor,
whatever `config.tie_word_embeddings` says.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from ..errors import UnsupportedModelError
from ..tokens import Side
from .elsewhere import BEFORE, COMPUTED, QUANTISED, is_sharded
from .stored_rows import StoredRows
from .table import ExtraRows, Location, Table, TiedTensor, shape_of, tied_tensors
from .unwrapping import refuse_fsdp

_HEAD_NAMES = re.compile(
    r"head|decoder|predictions|proj|embed_out|generator|cls|pred_layer|lm_loss|logits|output"
)
_OTHER_EMBEDDINGS = re.compile(r"pos|type|segment|wpe|bucket|relative|lang|time|codebook")
"""Embeddings of something other than tokens, which may happen to have as many rows."""

TARGET_PREFIXES = ("decoder", "tgt", "target")
"""How names of the target side's vocabulary size begin."""

EXTRA_ROWS: dict[str, ExtraRows] = {
    "cpmant": "moving",
    "kyutai_speech_to_text": "moving",
    "moshi": "moving",
    "mllama": "fixed",
    "mllama_text_model": "fixed",
    "molmo2_text": "fixed",
    "molmo2": "fixed",
}
"""Model types whose input table has rows beyond `vocab_size`. Prompt and start rows are looked up at
`vocab_size + i` and move when the vocabulary grows; rows of image tokens have ids of their own and stay."""


def _refuse_odd_models(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` for a model whose tables are not plain tensors that can be replaced."""
    name = type(model).__name__
    try:
        model.config.get_text_config()
    except ValueError as error:  # MusicGen's, of a text encoder and a decoder of audio codes
        raise UnsupportedModelError(
            f"{name} has several vocabularies in one model: give the part whose tokens are meant, such as "
            f"model.text_encoder"
        ) from error
    for module in model.modules():
        refuse_fsdp(module, name)
        if isinstance(module, nn.AdaptiveLogSoftmaxWithLoss):
            raise UnsupportedModelError(
                f"{name} has an adaptive softmax, which splits the vocabulary by frequency"
            )


def refuse_resize(model: PreTrainedModel) -> None:
    """Raises `UnsupportedModelError` for a head in which other scores stand behind those of the tokens."""
    durations = getattr(model.config, "durations", None)
    if isinstance(durations, (list, tuple)) and hasattr(model, "joint"):
        raise UnsupportedModelError(
            f"{type(model).__name__} scores {len(durations)} durations behind the tokens in one head: the "
            f"size of its vocabulary cannot be changed"
        )


def _refuse_odd_table(table: Table) -> None:
    """Raises `UnsupportedModelError` for a table that is inside an adapter, or quantised."""
    for location in table.tied.locations:
        if hasattr(location.module, "base_layer") or ".base_layer." in f".{location.name}":
            raise UnsupportedModelError(
                f"{location.name} is wrapped by an adapter: change the vocabulary before that"
            )
        if hasattr(location.module, "modules_to_save") or ".modules_to_save." in f".{location.name}":
            raise UnsupportedModelError(
                f"{location.name} is copied by an adapter: change the vocabulary before that"
            )
        tensor: Any = location.tensor
        if getattr(location.module, "_hf_tp_plan", None) and not is_sharded(tensor):
            raise UnsupportedModelError(  # transformers before its tensor parallelism was one of DTensors
                f"{location.name} is this process's part of a table under tensor parallelism: {BEFORE}"
            )
        values = tensor.to_local() if is_sharded(tensor) else tensor.data
        plain = type(values) in (Tensor, StoredRows) and tensor.is_floating_point()
        if not plain or getattr(location.module, "quant_mode", False) or location.tensor.element_size() < 2:
            raise UnsupportedModelError(f"{location.name} is {QUANTISED}")


def _refuse_hidden_head(model: PreTrainedModel, tables: list[Table], head: Any) -> None:
    """Raises `UnsupportedModelError` where no table is found in the head that a model names, or around it."""
    if not isinstance(head, nn.Module):
        return
    places = [p for t in tables if t.role == "output" for tied in (t.tied, *t.bias) for p in tied.locations]
    if any(_holds(head, p.module) or _holds(p.module, head) for p in places):
        return
    if callable(getattr(head, "weight", None)):  # torch's dynamic quantisation
        raise UnsupportedModelError(f"the head of {type(model).__name__} is {QUANTISED}")
    if _matrix(head) and not isinstance(head.weight, nn.Parameter):
        raise UnsupportedModelError(f"the weight of the head of {type(model).__name__} is {COMPUTED}")
    raise UnsupportedModelError(
        f"the head of {type(model).__name__}, a {type(head).__name__}, has no single table of "
        f"{tables[0].num_embeddings} rows, and would not grow with the input embeddings: let "
        f"get_output_embeddings() give the module whose weight makes the logits"
    )


def discover(model: PreTrainedModel) -> list[Table]:
    """All tables of `model`. Raises `UnsupportedModelError` when it has none, or one in disguise."""
    _refuse_odd_models(model)
    tensors = tied_tensors(model)
    tables = _input_tables(model, tensors)
    tables += _output_tables(model, tensors, tables)
    _count_extra_rows(model, tables)
    tables += _per_layer_tables(model, tensors, tables)
    head = _accessor(model, "get_output_embeddings")
    _attach_biases(tensors, tables, head)
    for table in tables:
        _refuse_odd_table(table)
    _refuse_hidden_head(model, tables, head)
    return tables


def _accessor(model: Any, name: str) -> Any:
    """`model.name()`, None where the architecture has no such thing."""
    try:
        return getattr(model, name)()
    except (NotImplementedError, AttributeError, TypeError):
        return None


def _matrix(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(module, nn.Module) and isinstance(weight, Tensor) and len(shape_of(weight)) == 2


def _holds(module: nn.Module, inner: Any) -> bool:
    return any(inner is one for one in module.modules())


def _head_of(model: Any) -> Any:
    """The matrix that a model names as its head, or the one inside what it names, such as `nn.Sequential`."""
    named = _accessor(model, "get_output_embeddings")
    if not isinstance(named, nn.Module) or _matrix(named):
        return named
    inside = [module for module in named.modules() if _matrix(module)]
    return inside[0] if len(inside) == 1 else None


def _embedding_of(model: Any) -> nn.Module | None:
    """The `[V, D]` token table that a model names, if any."""
    module = _accessor(model, "get_input_embeddings")
    if module is None:
        module = getattr(model, "embed_tokens", None)
    return module if _matrix(module) and not isinstance(module, nn.Linear) else None


def _input_tables(model: PreTrainedModel, tensors: dict[int, TiedTensor]) -> list[Table]:
    encoder, decoder = (
        part if isinstance(part, nn.Module) and part is not model else None
        for part in (_accessor(model, "get_encoder"), _accessor(model, "get_decoder"))
    )
    of_encoder = _embedding_of(encoder) if encoder is not decoder else None
    of_decoder = _embedding_of(decoder)
    main = _embedding_of(model) or of_decoder or of_encoder or _only_candidate(model)
    if main is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no single token table: its input embeddings are no [V, D] matrix"
        )
    tables: list[Table] = []

    def add(module: nn.Module) -> None:
        tied = tensors.get(id(module.weight))
        if tied is None:
            raise UnsupportedModelError(
                f"the embeddings of {type(model).__name__} are a {type(module).__name__} of computed rows: "
                f"change the vocabulary before adding an adapter"
            )
        if not any(t.tied is tied for t in tables):
            tables.append(Table(tied, "input", location=_location(tied, module)))

    for module in (main, of_encoder, of_decoder):
        if module is not None:
            add(module)
    sides = _two_sides(model, tensors, of_encoder, of_decoder)
    rows = tables[0].num_embeddings
    if not sides:  # an inner model that reads the same ids, such as Blt's patcher and Moshi's depth decoder
        for inner in model.modules():
            if isinstance(inner, PreTrainedModel) and inner is not model:
                text = getattr(inner, "text_embed_tokens", None)
                module = text if _matrix(text) else _embedding_of(inner)
                if module is not None and shape_of(module.weight)[0] == rows:  # type: ignore[arg-type]
                    add(module)
    for table in tables:
        table.side = sides.get(id(table.tied), "source" if sides else "shared")
    return tables


def _only_candidate(model: PreTrainedModel) -> nn.Module | None:
    """The one embedding with as many rows as the vocabulary, for models without accessors (Perceiver)."""
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    candidates = [m for m in model.modules() if isinstance(m, nn.Embedding) and m.num_embeddings == size]
    return candidates[0] if len(candidates) == 1 else None


def _location(tied: TiedTensor, module: nn.Module) -> Location:
    return next((p for p in tied.locations if p.module is module), tied.locations[0])


def _two_sides(
    model: PreTrainedModel,
    tensors: dict[int, TiedTensor],
    of_encoder: nn.Module | None,
    of_decoder: nn.Module | None,
) -> dict[int, Side]:
    """`{id(tied): side}` when encoder and decoder have vocabularies of their own, else empty."""
    if of_encoder is None or of_decoder is None:
        return {}
    source, target = tensors[id(of_encoder.weight)], tensors[id(of_decoder.weight)]
    if source is target:
        return {}
    if source.rows == target.rows:  # tensors cannot tell then: one vocabulary in two tables, or two as large
        shared = getattr(model.config, "share_encoder_decoder_embeddings", None)
        if shared or (shared is None and not _has_target_size(model.config)):
            return {}
    return {id(source): "source", id(target): "target"}


def _has_target_size(config: PretrainedConfig) -> bool:
    """Whether a config sizes the decoder's vocabulary apart: Marian, FSMT, pairs of two models."""
    if any(is_vocabulary_size(k, v) and k.startswith(TARGET_PREFIXES) for k, v in vars(config).items()):
        return True
    parts = (getattr(config, part, None) for part in ("encoder", "decoder"))
    return not hasattr(config, "vocab_size") and all(isinstance(part, PretrainedConfig) for part in parts)


def is_vocabulary_size(key: str, value: Any) -> bool:
    """Whether an attribute of a config or module says how many tokens there are."""
    counts = isinstance(value, int) and not isinstance(value, bool)
    named = key.endswith("vocab_size") or key in ("vocab_size_per_layer_input", "n_words")
    return counts and named and key != "type_vocab_size"


def _output_tables(
    model: PreTrainedModel, tensors: dict[int, TiedTensor], inputs: list[Table]
) -> list[Table]:
    target: Side = "target" if any(t.side == "target" for t in inputs) else "shared"
    rows = next((t.num_embeddings for t in inputs if t.side == target), inputs[0].num_embeddings)
    heads: list[tuple[nn.Module, int]] = []
    head: Any = _head_of(model)
    if _matrix(head) and id(head.weight) in tensors:
        shape = shape_of(head.weight)
        if rows in shape or shape[0] != inputs[0].embedding_dim:  # else hidden states, as DeBERTa's `dense`
            heads.append((head, 1 if shape[0] != rows and shape[1] == rows else 0))
            rows = min(rows, shape[heads[0][1]])
    for inner in model.modules():
        head = _head_of(inner) if isinstance(inner, PreTrainedModel) else None
        stored = _matrix(head) and id(head.weight) in tensors
        if stored and shape_of(head.weight)[0] == rows and not any(head is h for h, _ in heads):
            heads.append((head, 0))
    parent = next((_location(tensors[id(h.weight)], h).name.rsplit(".", 2)[0] for h, _ in heads), None)
    for name, module in model.named_modules():
        tied = tensors.get(id(module.weight)) if isinstance(module, nn.Linear) and _matrix(module) else None
        if tied is None or any(module is h for h, _ in heads):  # None: a weight made of others, too
            continue
        if any(tied is t.tied for t in inputs):
            heads.append((module, 0))
            continue
        out, width = shape_of(module.weight)
        in_stack = any(part.isdigit() for part in name.split("."))
        if in_stack or out == width or not _HEAD_NAMES.search(name):
            continue
        if out == rows:
            heads.append((module, 0))
        elif width == rows and parent is not None and name.rpartition(".")[0] == parent:
            heads.append((module, 1))  # MobileBert's head is its table and a transposed rest side by side

    tables: list[Table] = []
    for module, dim in heads:
        tied = tensors[id(module.weight)]
        tied_to = next((t for t in inputs if t.tied is tied), None)
        if tied_to is None:
            tied.dim = dim
        tied_name = tied_to.name if tied_to else None
        side = tied_to.side if tied_to else target
        tables.append(Table(tied, "output", side=side, tied_to=tied_name, location=_location(tied, module)))
    return tables


def _count_extra_rows(model: PreTrainedModel, tables: list[Table]) -> None:
    """Rows of each table beyond the vocabulary: an untied head tells, or the config of known designs."""
    config = model.config.get_text_config()
    policy = EXTRA_ROWS.get(config.model_type) or EXTRA_ROWS.get(model.config.model_type)
    for side in {t.side for t in tables}:
        of_side = [t for t in tables if t.side == side]
        size = min(t.num_embeddings for t in of_side)
        if policy is not None:
            size = min(size, config.vocab_size)
        padded = size == getattr(config, "unpadded_vocab_size", None)  # Inkling 2: the head's rows, no more
        for table in of_side:
            table.extra_rows = table.num_embeddings - size
            table.extra_rows_are = policy or ("padding" if padded else "fixed")


def _per_layer_tables(
    model: PreTrainedModel, tensors: dict[int, TiedTensor], tables: list[Table]
) -> list[Table]:
    """Further tables by token: Gemma 3n's `embed_tokens_per_layer`, NeoMME's `value_embeddings`."""
    if any(t.side != "shared" for t in tables):
        return []
    size = tables[0].num_embeddings - tables[0].extra_rows
    known = {id(t.tied) for t in tables}
    found = []
    for name, module in model.named_modules():
        tied = tensors.get(id(module.weight)) if isinstance(module, nn.Embedding) else None
        if tied is None or id(tied) in known:
            continue
        if "per_layer" in name or (module.num_embeddings == size and not _OTHER_EMBEDDINGS.search(name)):
            known.add(id(tied))
            found.append(
                Table(tied, "per_layer", extra_rows=tied.rows - size, location=_location(tied, module))
            )
    return found


def _attach_biases(tensors: dict[int, TiedTensor], tables: list[Table], head: Any) -> None:
    """Gives every output table the biases of its module and of the modules around it."""
    outputs = [t for t in tables if t.role == "output"]
    taken: set[int] = set()
    for table in outputs:
        own = table.name.rpartition(".")[0]
        for tied in tensors.values():
            if id(tied) in taken or not _is_bias(tied, table.num_embeddings - table.extra_rows):
                continue
            if any(_encloses(location, own) for location in tied.locations):
                taken.add(id(tied))
                tied.dim = len(shape_of(tied.tensor)) - 1
                table.bias.append(tied)
    if not outputs:  # Perceiver, DeBERTa: the input table, and the bias of a module without a matrix
        main = tables[0]
        for tied in tensors.values():
            owner = tied.locations[0].module
            size = getattr(owner, "vocab_size", None)
            adds = size == main.num_embeddings or (_matrix(head) and _holds(owner, head))
            alone = not _matrix(owner) or owner.weight is main.parameter  # older DeBERTa
            if _is_bias(tied, main.num_embeddings) and alone and adds:
                tables.append(
                    Table(main.tied, "output", main.side, main.name, [tied], location=main.location)
                )


def _is_bias(tied: TiedTensor, rows: int) -> bool:
    """Whether a tensor adds to the logits by token, or scales them (Dory): an entry a row in either case."""
    shape = shape_of(tied.tensor)
    line = len(shape) == 1 or (len(shape) == 2 and shape[0] == 1)
    named = any("bias" in p.attribute or p.attribute == "logit_scale" for p in tied.locations)
    return line and named and shape[-1] == rows and tied.tensor.is_floating_point()


def _encloses(location: Location, module_name: str) -> bool:
    """Whether a tensor belongs to the module called `module_name` or to one that it is part of."""
    owner = location.name.rpartition(".")[0]
    return owner == module_name or owner == "" or module_name.startswith(f"{owner}.")


def companions(tensors: dict[int, TiedTensor], tables: list[Table]) -> list[TiedTensor]:
    """Other buffers with a row a token: DeepSeek V4's experts, I-BERT's integer copy of its table."""
    if any(t.side != "shared" for t in tables):
        return []
    size = tables[0].num_embeddings - tables[0].extra_rows
    owners = {id(p.module) for t in tables for p in t.tied.locations}
    known = {id(s) for t in tables for s in (t.tied, *t.bias)}
    buffers: list[TiedTensor] = []
    for tied in tensors.values():
        tensor = tied.tensor
        if id(tied) in known or any(tied is other for other in buffers) or tensor.dim() != 2:
            continue
        buffer = not isinstance(tensor, nn.Parameter) and tensor.shape[0] == size
        if buffer and (not tensor.is_floating_point() or any(id(p.module) in owners for p in tied.locations)):
            buffers.append(tied)
    return buffers
