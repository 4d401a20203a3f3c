from __future__ import annotations

import functools

import pytest

from hf_embinit import initializers
from hf_embinit.errors import InvalidArgumentError, UnknownNameError
from hf_embinit.initializers import (
    get_initializer,
    list_initializers,
    register_initializer,
    registry,
)
from hf_embinit.registry import DuplicateNameError

SOURCES = ("glove", "bert", "mbert", "t5", "mt5", "pretrained")


def test_every_name_of_the_design_is_registered() -> None:
    names = {r.name for r in list_initializers()}
    assert {"xavier", "normal", "zeros"} <= names
    for source in SOURCES:
        assert {
            source,
            f"{source}_xavier",
            f"{source}_orthogonal",
            f"{source}_shuffled",
            f"xavier_{source}",
        } <= names
    assert initializers.InitContext is not None


def test_listing_by_pattern_is_sorted_and_one_line_each() -> None:
    records = list_initializers("glove*")
    assert [r.name for r in records] == ["glove", "glove_orthogonal", "glove_shuffled", "glove_xavier"]
    assert all("\n" not in str(r) and r.reference and r.summary for r in list_initializers())


def test_default_is_another_name_of_normal_and_listed_with_it() -> None:
    assert get_initializer("default") is get_initializer("normal")
    assert [r.name for r in list_initializers() if "default" in (r.name, *r.aliases)] == ["normal"]
    assert list_initializers("default") == list_initializers("normal")


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Unknown init 'glove_xaver'. Did you mean: glove_xavier"
    ) as error:
        get_initializer("glove_xaver")
    assert "Available: " in str(error.value)


def test_options_in_the_name_are_told_apart() -> None:
    with pytest.raises(
        UnknownNameError, match=r"Give 'mean_cov' its options apart, .* --option scale=auto\."
    ):
        get_initializer("mean_cov:scale=auto,seed=1")


def test_an_unknown_name_is_answered_with_names_that_serve_its_purpose() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean: subword_mean") as error:
        get_initializer("subword", purpose="rows")
    assert "mean_cov" in str(error.value) and "xavier" not in str(error.value)
    assert get_initializer("xavier", purpose="rows").purpose == "table"  # callers say what for


def test_a_taken_name_is_refused() -> None:
    with pytest.raises(DuplicateNameError, match="xavier"):
        register_initializer("xavier", summary="", reference="")(lambda context: None)
    assert get_initializer("xavier").summary


class Scaled:
    """A callable object with an option."""

    def __call__(self, context, *, width: int = 3):
        """Makes nothing."""


def plain(context, *, width: int = 3):
    return None


def of_a_width(context, *, width: int = 2):
    return None


def of_no_type(context, *, width: Nowhere = 3):  # type: ignore[name-defined]  # noqa: F821
    return None


@pytest.mark.parametrize("fn", [plain, Scaled(), functools.partial(of_a_width, width=3), of_no_type])
def test_a_new_name_can_be_registered_and_its_options_are_read_and_checked(fn) -> None:
    try:
        register_initializer("test_only", summary="s", reference="t")(fn)
        record = get_initializer("test_only")
        assert record.options == {"width": 3}
        if fn is of_no_type:
            with pytest.raises(
                InvalidArgumentError, match="an annotation of its function: name 'Nowhere' is"
            ):
                record.check_options({"width": 4})
            return
        record.check_options({"width": 4})
        with pytest.raises(InvalidArgumentError, match=r"'test_only' has no option 'with'.*width=3"):
            record.check_options({"with": 1})
        with pytest.raises(InvalidArgumentError, match="init 'test_only': width='a': expected an integer"):
            record.check_options({"width": "a"})
    finally:
        registry.INITIALIZERS.remove("test_only")


@pytest.mark.parametrize("name", ["", "a:b", "a,b", "a+b", "a=b", "a b", "a\n"])
def test_names_that_a_command_line_could_not_say(name: str) -> None:
    for names in ({"name": name}, {"name": "fine", "aliases": (name,)}):
        with pytest.raises(InvalidArgumentError, match="expected a name without white space"):
            register_initializer(**names, summary="s", reference="r")


def test_what_is_registered_is_a_function() -> None:
    for wrong, said in ((3, "3"), (lambda: None, "<<lambda>>"), (lambda *, width=3: None, "<<lambda>>")):
        with pytest.raises(InvalidArgumentError, match=f"registers {said}: expected a function of a context"):
            register_initializer("three", summary="s", reference="r")(wrong)  # type: ignore[type-var]
