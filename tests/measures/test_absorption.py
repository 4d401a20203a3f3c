"""Analogies and absorption: by hand, on a space made for it, and on real vectors."""

from __future__ import annotations

import math

import pytest
import torch

from hf_embinit.errors import DataNotFoundError, InvalidArgumentError
from hf_embinit.measures.absorption import (
    _rank_correlation,
    absorption,
    absorption_curve,
    table_4_transformations,
)
from hf_embinit.measures.analogies import AnalogyTask, analogy_score, read_analogies
from hf_embinit.measures.glue import spearmanr
from hf_embinit.measures.positions import position_span, project_out, random_positions
from hf_embinit.measures.statistics import position_encoding
from hf_embinit.moments import standardize, xavier_std


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def clustered(v=400, d=64, seed=0):
    """Words in clusters, so that neighbors mean something."""
    g = generator(seed)
    centers = torch.randn(v // 10, d, generator=g)
    return centers.repeat_interleave(10, 0) + 0.5 * torch.randn(v, d, generator=g)


def slow_accuracy(weight, rows):
    """3CosAdd, one question and one candidate after the other."""
    units = torch.nn.functional.normalize(weight.double(), dim=1)
    correct = 0
    for a, b, c, d in rows.tolist():
        target = units[b] - units[a] + units[c]
        scores = [(float(units[i] @ target), -i) for i in range(len(units)) if i not in (a, b, c)]
        correct += -max(scores)[1] == d
    return correct


@pytest.fixture
def questions_file(tmp_path):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": capitals\nAthens Greece Oslo Norway\nOslo Norway Athens Greece\n\n: other\na b c nowhere\n"
    )
    return path


def test_questions_are_read_by_section(questions_file):
    questions = read_analogies(questions_file)
    assert list(questions) == ["capitals", "other"] and len(questions["capitals"]) == 2
    assert read_analogies(questions_file, lowercase=True)["capitals"][0] == (
        "athens",
        "greece",
        "oslo",
        "norway",
    )
    tokens = ["Athens", "Greece", "Oslo", "Norway", "Athens", "a", "b", "c"]
    task = AnalogyTask.for_tokens(questions, tokens)
    assert task.rows.tolist() == [[0, 1, 2, 3], [2, 3, 0, 1]] and task.total == 3  # the first Athens counts
    questions_file.write_text(": x\none two three\n")
    with pytest.raises(InvalidArgumentError, match="line 2: expected four words"):
        read_analogies(questions_file)
    with pytest.raises(DataNotFoundError, match="nowhere"):
        read_analogies("nowhere.txt")


def test_analogies_agree_with_the_slow_way(monkeypatch):
    monkeypatch.setattr("hf_embinit.measures.analogies._BLOCK", 33)
    weight = clustered(80, 6)
    rows = torch.stack([torch.randperm(80, generator=generator(i))[:4] for i in range(200)])
    # some that hold: d is made to complete the square
    weight[rows[:20, 3]] = weight[rows[:20, 1]] - weight[rows[:20, 0]] + weight[rows[:20, 2]]
    task = AnalogyTask(rows, torch.arange(200) // 100, ["one", "two"], total=500)
    score = analogy_score(weight, task)
    assert score.correct == slow_accuracy(weight, rows) > 5
    assert score.applicable == 200 and score.total == 500
    assert sum(c for c, _ in score.sections.values()) == score.correct
    assert str(score) == f"{score.correct}/200 ({score.correct / 2:.1f})"
    assert str(analogy_score(weight.bfloat16().float() * 7, task)).endswith(")")


def test_rows_from_the_end_are_no_rows_of_a_task():
    task = AnalogyTask(torch.tensor([[-1, 0, 1, 2]]), torch.tensor([0]), ["s"], 1)
    with pytest.raises(InvalidArgumentError, match="the analogies are about rows -1 to 2, weight has 5"):
        analogy_score(torch.randn(5, 4), task)


def test_question_words_are_no_answers():
    weight = torch.eye(4)
    weight[3] = torch.tensor([-0.1, 0.1, 0.1, 1.0])
    task = AnalogyTask(torch.tensor([[0, 1, 2, 3]]), torch.tensor([0]), ["x"], total=1)
    assert analogy_score(weight, task).accuracy == 1.0  # b and c are nearer
    none = AnalogyTask(torch.zeros(0, 4, dtype=torch.long), torch.zeros(0, dtype=torch.long), ["x"], total=3)
    assert analogy_score(weight, none).applicable == 0 and math.isnan(analogy_score(weight, none).accuracy)
    with pytest.raises(InvalidArgumentError, match="rows 0 to 3"):
        analogy_score(weight[:3], task)


def test_position_span():
    basis = position_span(position_encoding(64, 300))
    assert len(basis) == 23  # facts of the sinusoids: 64 positions in 300 dimensions
    assert torch.allclose(basis @ basis.T, torch.eye(23), atol=1e-5)
    p = position_encoding(64, 300)
    assert float(project_out(p, basis).square().sum() / p.square().sum()) < 1.1e-4
    assert len(position_span(position_encoding(64, 300), 1.0)) <= 64
    with pytest.raises(InvalidArgumentError, match="energy"):
        position_span(p, 0.0)


def test_absorption_both_ways():
    words = clustered()
    wide = absorption(words * 10, 16, generator=generator())
    narrow = absorption(words * 0.01, 16, generator=generator())
    assert wide.knn_match_in_sum > 0.9 > narrow.knn_match_in_sum
    assert wide.rank_correlation_in_sum > narrow.rank_correlation_in_sum
    assert wide.position_accuracy_in_sum < 0.5 < 0.99 < narrow.position_accuracy_in_sum
    # the words come back, since 16 positions span few of 64 dimensions
    assert narrow.span_dimensions < 16
    assert narrow.knn_match_recovered > 2 * narrow.knn_match_in_sum
    assert narrow.rank_correlation_recovered > 0.7
    assert narrow.rank_correlation_recovered > narrow.rank_correlation_in_sum + 0.2
    middle = absorption(words * 0.1, 16, generator=generator())
    assert 0.5 < middle.position_accuracy_in_sum < middle.position_accuracy_recovered < 0.7
    assert narrow.analogies_alone is None
    assert set(narrow.to_dict()) >= {"knn_match_in_sum", "position_accuracy_recovered"}


def test_absorption_is_seeded_and_leaves_its_input_alone(global_rng_untouched):
    words = clustered(100, 16)
    before = words.clone()
    assert absorption(words, 8, generator=generator()) == absorption(words, 8, generator=generator())
    assert torch.equal(words, before)
    curve = absorption_curve(words, (4, 8), generator=generator(), sample=50)
    assert [point.num_positions for point in curve] == [4, 8]


def test_a_span_that_fills_the_space_gives_nothing_back():
    point = absorption(clustered(100, 4), 500, generator=generator())
    assert point.span_dimensions == 4 and point.knn_match_recovered is None
    names = [name for name, _ in table_4_transformations(clustered(100, 4), 500, generator=generator())]
    assert len(names) == 7


def test_positions_are_not_read_by_a_fit_to_few_rows():
    """With fewer rows than dimensions of the span, some combination of them is free of any noise."""
    few = 1000 * torch.randn(100, 300, generator=generator())
    point = absorption(few, 1024, generator=generator())
    assert point.span_dimensions > 100 and point.position_accuracy_in_sum < 0.05
    assert point.position_accuracy_recovered is None
    many = absorption(1000 * torch.randn(700, 300, generator=generator()), 1024, generator=generator())
    assert many.position_accuracy_recovered < 0.1


def test_random_positions():
    p = position_encoding(10, 4)
    rows, which = random_positions(p, 1000, generator=generator())
    assert torch.equal(rows, p[which]) and set(which.tolist()) == set(range(10))


def test_table_4_tables():
    words = clustered(100, 16)
    tables = dict(table_4_transformations(words, 20, generator=generator()))
    assert len(tables) == 8
    narrow = tables["Xavier-standardized"]
    assert float(narrow.std()) == pytest.approx(xavier_std(100, 16), rel=1e-5)
    assert torch.allclose(tables["scaled"], words * 4)
    added = tables["scaled + positions"] - tables["scaled"]
    assert torch.allclose(tables["Xavier-standardized, scaled + positions"], narrow * 4 + added, atol=1e-5)
    # the seventh is the sixth, but for its mean and one factor: Eq. 1 undone
    factor = float(words.std()) / xavier_std(100, 16)
    seventh = tables["scaled + positions x sigma_p / sigma_x"]
    difference = seventh - factor * tables["Xavier-standardized, scaled + positions"]
    assert float(difference.std()) < 1e-4 * float(seventh.std())


@pytest.mark.data
def test_table_4_on_real_vectors(data_folder):
    """The paper's pattern, stronger: standardized and scaled, the sum with positions keeps nothing."""
    from hf_embinit.vectors import read_vectors

    vectors = read_vectors(data_folder / "vectors" / "googlenews_word2vec_8000x300.txt")
    questions = read_analogies(data_folder / "analogies" / "questions-words.txt")
    task = AnalogyTask.for_tokens(questions, vectors.tokens)
    assert (len(task.rows), task.total) == (4686, 19544)

    def scores(num_positions):
        tables = table_4_transformations(vectors.matrix, num_positions, generator=generator())
        return [100 * analogy_score(table, task).accuracy for _, table in tables]

    short, long = scores(64), scores(5000)
    for values in (short, long):
        for unchanged in (0, 1, 3, 4):
            assert f"{values[unchanged]:.1f}" == "78.7"
    assert short[2] == pytest.approx(77.8, abs=0.5) and long[2] == pytest.approx(78.1, abs=0.8)
    assert short[5] == pytest.approx(4.0, abs=0.8) and short[6] == pytest.approx(short[5], abs=0.1)
    assert long[5] < 0.3 and long[6] < 0.3
    assert short[7] == pytest.approx(78.5, abs=0.5)  # all of it comes back


@pytest.mark.data
def test_absorption_on_real_vectors(data_folder):
    """Standardized word2vec plus 64 positions has lost the words, and yet nothing is destroyed."""
    from hf_embinit.vectors import read_vectors

    x = read_vectors(data_folder / "vectors" / "googlenews_word2vec_8000x300.txt").matrix
    narrow = absorption(standardize(x, 0, xavier_std(*x.shape)), 64, generator=generator(), sample=500)
    assert narrow.knn_match_in_sum < 0.05 and narrow.knn_match_recovered > 0.8
    assert narrow.rank_correlation_in_sum < 0.2 and narrow.rank_correlation_recovered > 0.9
    assert narrow.position_accuracy_in_sum > 0.999
    plain = absorption(x, 64, generator=generator(), sample=500)
    assert plain.knn_match_in_sum > 0.8 and plain.position_accuracy_in_sum < 0.4


def test_equal_cosines_share_their_mean_rank():
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = rows + torch.randn(40, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows[10:25] = rows[10]  # tokens that have no vector share one row
    tokens, near = torch.tensor([0, 1]), torch.arange(2, 32).repeat(2, 1)
    expected = 0.0
    for token in tokens.tolist():
        cosines = [torch.cosine_similarity(x[token][None], x[near[token]]).numpy() for x in (rows, other)]
        expected += spearmanr(cosines[0].round(12), cosines[1].round(12)) / 2
    got = _rank_correlation(rows, other, tokens, near)
    assert got == pytest.approx(expected, abs=1e-6)


def test_options_that_absorption_has_not_are_refused():
    with pytest.raises(InvalidArgumentError, match="no option 'foo'; its options: scale"):
        absorption_curve(torch.randn(20, 8), (2,), generator=torch.Generator(), foo=1)


def test_questions_with_a_mark_of_utf8_and_unusual_spaces(tmp_path):
    path = tmp_path / "q.txt"
    path.write_bytes(b"\xef\xbb\xbf: one\r\na b c d\r\ne f g h")
    assert read_analogies(path) == {"one": [("a", "b", "c", "d"), ("e", "f", "g", "h")]}
    path.write_text("a b c d\x85 \ne f g h", encoding="utf-8")
    assert len(read_analogies(path)[""]) == 2


@pytest.mark.parametrize("question", [("a", "b", "c"), ("a", "b", "c", "d", "a"), "a b c d"])
def test_a_question_is_four_words(question) -> None:
    with pytest.raises(InvalidArgumentError, match="expected four words"):
        AnalogyTask.for_tokens({"s": [question] * 4}, ["a", "b", "c", "d"])
