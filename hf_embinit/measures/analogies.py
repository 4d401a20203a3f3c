"""Word analogies (a is to b as c is to d) by 3CosAdd, batched. `V` tokens, `D` columns, `Q` questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..arguments import FilePath, checked
from ..errors import DataNotFoundError, InvalidArgumentError
from ..foreign import reading
from ..moments import unit_rows
from .statistics import check_table

Question = tuple[str, str, str, str]

_BLOCK = 2048
"""Questions, and rows of the table, of a block of scores: 16 MiB, which caches hold."""


@dataclass(frozen=True)
class AnalogyScore:
    """How many questions were answered: `str(score)` is `1424/1631 (87.3)`, as Kim et al. 2024 print it."""

    correct: int
    applicable: int
    """Questions whose four words are all in the vocabulary."""
    total: int
    sections: dict[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    """Section -> (correct, applicable)."""

    @property
    def accuracy(self) -> float:
        """correct / applicable, 0 to 1; NaN when no question applies."""
        return self.correct / self.applicable if self.applicable else float("nan")

    def __str__(self) -> str:
        return f"{self.correct}/{self.applicable} ({100 * self.accuracy:.1f})"


@checked
def read_analogies(path: FilePath, *, lowercase: bool = False) -> dict[str, list[Question]]:
    """Section -> questions of a file in the format of Google's `questions-words.txt`.

    Lines that start with `:` name a section; the others hold four words. Raises `DataNotFoundError` when
    the file is not there, and `InvalidArgumentError` for a line of another kind and for a file without
    questions.
    """
    path = Path(path)
    if not path.is_file():
        raise DataNotFoundError(f"no file of analogy questions at {path}")
    sections: dict[str, list[Question]] = {}
    name = ""
    with reading(path, InvalidArgumentError):
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    for number, line in enumerate(lines, 1):
        if line.startswith(":"):
            name = line[1:].strip()
            continue
        words = (line.lower() if lowercase else line).split()
        if not words:
            continue
        if len(words) != 4:
            raise InvalidArgumentError(f"{path}, line {number}: expected four words, got {line!r}")
        sections.setdefault(name, []).append((words[0], words[1], words[2], words[3]))
    if not sections:
        raise InvalidArgumentError(f"{path} has no question: expected lines of four words")
    return sections


@dataclass(frozen=True)
class AnalogyTask:
    """The questions that a vocabulary can answer, as row indices."""

    rows: Tensor
    """`[Q, 4]`: rows of a, b, c, d."""
    section_of: Tensor
    """`[Q]`: index into `section_names`."""
    section_names: list[str]
    total: int
    """Questions in the file, applicable or not."""

    @classmethod
    def for_tokens(cls, questions: Mapping[str, Sequence[Question]], tokens: Sequence[str]) -> AnalogyTask:
        """The questions whose words are all in `tokens` (one a row; the first of equal ones counts).

        Raises `InvalidArgumentError` for a question that is not four words.
        """
        row = {token: i for i, token in reversed(list(enumerate(tokens)))}
        names = list(questions)
        rows, section_of = [], []
        for index, name in enumerate(names):
            for question in questions[name]:
                if isinstance(question, str) or len(question) != 4:
                    raise InvalidArgumentError(
                        f"questions has {question!r} in {name!r}: expected four words (a, b, c, d)"
                    )
                if all(word in row for word in question):
                    rows.append([row[word] for word in question])
                    section_of.append(index)
        return cls(
            rows=torch.tensor(rows, dtype=torch.long).reshape(-1, 4),
            section_of=torch.tensor(section_of, dtype=torch.long),
            section_names=names,
            total=sum(map(len, questions.values())),
        )


@torch.no_grad()
@checked
def analogy_score(weight: Tensor, task: AnalogyTask) -> AnalogyScore:
    """`AnalogyScore` of the rows of `weight` `[V, D]`, by 3CosAdd (Mikolov et al. 2013).

    The answer to a : b = c : ? is the row with the largest cosine to b - a + c, of unit rows, with the
    rows of a, b and c themselves left out. A question is correct when that row is d's. Raises
    `InvalidArgumentError` when the task is about rows that `weight` lacks, and for NaN or infinite values.
    """
    check_table(weight)
    if len(task.rows) and not 0 <= int(task.rows.min()) <= int(task.rows.max()) < weight.shape[0]:
        raise InvalidArgumentError(
            f"the analogies are about rows {int(task.rows.min())} to {int(task.rows.max())}, weight has "
            f"{weight.shape[0]}"
        )
    units = unit_rows(weight)
    right = [_answers(units, rows[:, :3]) == rows[:, 3] for rows in task.rows.to(units.device).split(_BLOCK)]
    correct = torch.cat(right).cpu() if right else torch.zeros(0, dtype=torch.bool)
    sections = {}
    for index, name in enumerate(task.section_names):
        inside = task.section_of == index
        if bool(inside.any()):
            sections[name] = (int(correct[inside].sum()), int(inside.sum()))
    return AnalogyScore(int(correct.sum()), len(correct), task.total, sections)


def _answers(units: Tensor, given: Tensor) -> Tensor:
    """The row `[q]` nearest to b - a + c for `given` `[q, 3]` rows a, b, c; the first of equal ones."""
    a, b, c = given.T
    asked = units[b] - units[a] + units[c]
    best = torch.full((len(given),), -torch.inf, dtype=torch.float32, device=units.device)
    answers = torch.zeros_like(a)
    for start in range(0, len(units), _BLOCK):
        block = units[start : start + _BLOCK]
        scores = asked @ block.T
        question, which = ((given >= start) & (given < start + len(block))).nonzero(as_tuple=True)
        scores[question, given[question, which] - start] = -torch.inf
        nearest = scores.max(1)
        better = nearest.values > best
        best = torch.where(better, nearest.values, best)
        answers = torch.where(better, nearest.indices + start, answers)
    return answers
