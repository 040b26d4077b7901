"""Settings as TOML: written and read again they are the same, and what does not fit is named with what was expected."""

import tomllib
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellread.config import changed, differences, from_dict, override, read, to_dict, to_toml
from wellread.errors import InputError, UsageError


@dataclass(frozen=True)
class Source:
    path: str
    weight: float = 1.0


@dataclass(frozen=True)
class Training:
    learning_rate: float = 1e-5
    steps: int | None = None
    shuffle: bool = True
    precision: Literal["fp32", "bf16"] = "fp32"
    rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self):
        if self.learning_rate < 0:
            raise UsageError(f"learning_rate is {self.learning_rate}; expected 0 or more")


@dataclass(frozen=True)
class Recipe:
    name: str
    training: Training = Training()
    extra: Training | None = None
    sources: tuple[Source, ...] = ()
    widths: tuple[int, ...] = (1, 2)
    pair: tuple[str, float] = ("a", 0.5)
    note: str | None = None


TRAININGS = st.builds(
    Training,
    learning_rate=st.floats(0, allow_nan=False),
    steps=st.none() | st.integers(-(10**20), 10**20),
    shuffle=st.booleans(),
    precision=st.sampled_from(["fp32", "bf16"]),
    rates=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=9), st.floats(allow_nan=False), max_size=3),
)
WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
RECIPES = st.builds(
    Recipe,
    name=WORDS,
    training=TRAININGS,
    extra=st.none() | TRAININGS,
    sources=st.lists(st.builds(Source, path=WORDS, weight=st.floats(allow_nan=False)), max_size=3).map(tuple),
    widths=st.lists(st.integers(), max_size=3).map(tuple),
    pair=st.tuples(WORDS, st.floats(allow_nan=False)),
    note=st.none() | WORDS,
)


@given(RECIPES)
def test_what_is_written_is_read_again_as_it_was(recipe):
    again = from_dict(Recipe, tomllib.loads(to_toml(recipe)))
    assert again == recipe
    assert repr(again) == repr(recipe)  # 1 == 1.0 == True, and -0.0 == 0.0
    assert to_toml(again) == to_toml(recipe)


def test_the_file_reads_like_one_written_by_hand(tmp_path):
    recipe = Recipe("first", Training(steps=3, rates={"head.x": 1e-3}), sources=(Source("a b.jsonl"), Source("c", 2.0)))
    assert to_toml(recipe) == (
        'name = "first"\nwidths = [1, 2]\npair = ["a", 0.5]\n\n'
        '[training]\nlearning_rate = 1e-05\nsteps = 3\nshuffle = true\nprecision = "fp32"\n\n'
        '[training.rates]\n"head.x" = 0.001\n\n'
        '[[sources]]\npath = "a b.jsonl"\nweight = 1.0\n\n[[sources]]\npath = "c"\nweight = 2.0\n'
    )
    (tmp_path / "r.toml").write_text(to_toml(recipe))
    assert read(Recipe, tmp_path / "r.toml") == recipe


def test_a_whole_number_is_a_number_too():
    value = from_dict(Source, {"path": "x", "weight": 2}).weight
    assert isinstance(value, float)
    assert value == 2.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"training": {"lerning_rate": 1}}, "'training.lerning_rate' is not a setting of Training; did you mean "
         "'training.learning_rate'?"),
        ({"learning_rate": 1.0}, "'learning_rate' is not a setting of Recipe; did you mean 'training.learning_rate'?"),
        ({"zzz": 1}, "'zzz' is not a setting of Recipe; its settings are: name, training, extra, sources, widths"),
        ({"training": {"steps": "ten"}}, "'training.steps' is \"ten\"; expected a whole number"),
        ({"training": {"steps": True}}, "'training.steps' is true; expected a whole number"),
        ({"training": {"steps": 1.0}}, "'training.steps' is 1.0; expected a whole number"),
        ({"training": {"learning_rate": True}}, "'training.learning_rate' is true; expected a number"),
        ({"training": {"shuffle": 1}}, "'training.shuffle' is 1; expected true or false"),
        ({"training": {"precision": "fp16"}}, '\'training.precision\' is "fp16"; expected "fp32" or "bf16"'),
        ({"training": {"rates": {"head": "x"}}}, "'training.rates.head' is \"x\"; expected a number"),
        ({"training": {"rates": 1.0}}, "'training.rates' is 1.0; expected a table, each a number"),
        ({"training": 3}, "'training' is 3; expected a table of settings: learning_rate, steps"),
        ({"training": {"learning_rate": -1}}, "training: learning_rate is -1.0; expected 0 or more"),
        ({"widths": [1, "2"]}, "'widths[1]' is \"2\"; expected a whole number"),
        ({"widths": 1}, "'widths' is 1; expected a list, each a whole number"),
        ({"pair": ["a"]}, "'pair' is [\"a\"]; expected a list of 2: a string, a number"),
        ({"sources": [{"path": "a"}, {"weight": 1}]}, "'sources[1].path' is missing; Source needs it: a string"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_with_what_was_expected(tmp_path, data, message):
    with pytest.raises(InputError) as caught:
        from_dict(Recipe, {"name": "x", **data})
    assert message in str(caught.value)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="'name' is missing; Recipe needs it: a string"):
        from_dict(Recipe, {})


def test_a_file_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text("name = 3")
    with pytest.raises(InputError, match=r"r\.toml: 'name' is 3; expected a string"):
        read(Recipe, path)
    path.write_text("name = \n")
    with pytest.raises(InputError, match=r"r\.toml: not TOML: .*line 1.*; expected lines like: name = value"):
        read(Recipe, path)
    with pytest.raises(InputError, match=r"^cannot read .*none"):
        read(Recipe, tmp_path / "none")


def test_changes_from_the_command_line_are_read_as_toml_but_strings_need_no_quotes():
    changes = [
        *("training.steps=100", "training.precision=bf16", "training.rates.head=1e-3", "extra.steps = 7"),
        *("widths=[3, 4]", "note=12", "name=a = b", 'pair=["q", 1]', "training.shuffle=false"),
    ]
    recipe = override(Recipe("first"), changes)
    assert recipe == Recipe(
        name="a = b",
        training=Training(steps=100, precision="bf16", rates={"head": 1e-3}, shuffle=False),
        extra=Training(steps=7),
        widths=(3, 4),
        pair=("q", 1.0),
        note="12",
    )
    assert override(recipe, ["note=none", "training.steps=none", "name=none"]) == override(
        Recipe("none", recipe.training, recipe.extra, widths=(3, 4), pair=("q", 1.0)), ["training.steps=none"]
    )


@pytest.mark.parametrize("name", ["encoder.layer.0", '"encoder.layer.0"', "head"])
def test_a_key_of_a_table_of_numbers_may_have_dots(name):
    recipe = override(Recipe("first"), ["training.rates.head=1e-3", f"training.rates.{name}=0.5"])
    assert recipe.training.rates == {"head": 1e-3} | {name.strip('"'): 0.5}


@pytest.mark.parametrize(
    ("change", "widths", "pair"),
    [
        ("widths=3+4", (3, 4), ("a", 0.5)),
        ("widths = 3 + 4", (3, 4), ("a", 0.5)),
        ("widths=3", (3,), ("a", 0.5)),
        ("widths=none", (), ("a", 0.5)),
        ("pair=b+1.5", (1, 2), ("b", 1.5)),
        ("pair=1+2", (1, 2), None),
    ],
)
def test_a_list_may_be_its_members_joined(change, widths, pair):
    if pair is None:  # which of the letters are numbers is not guessed member by member
        with pytest.raises(UsageError, match="expected a list of 2: a string, a number"):
            override(Recipe("first"), [change])
        return
    recipe = override(Recipe("a+b"), [change])
    assert (recipe.name, recipe.widths, recipe.pair) == ("a+b", widths, pair)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("widths=3+", "'widths' is \"3+\"; expected a list, each a whole number"),
        ("widths=3+x", "'widths' is \"3+x\"; expected a list, each a whole number"),
        ("training.steps", "'training.steps' changes no setting; expected name=value"),
        ("=1", "'=1' changes no setting"),
        ("training.stepz=1", "'training.stepz' is not a setting of Training; did you mean 'training.steps'?"),
        ("training.steps=many", "'training.steps' is \"many\"; expected a whole number"),
        ("training.shuffle=none", "'training.shuffle' is nothing; expected true or false"),
        ("name.first=1", "'name.first' is not a setting; 'name' is one, and has no settings of its own"),
        ("training.learning_rate=-1", "training: learning_rate is -1.0"),
    ],
)
def test_a_change_that_does_not_fit_is_a_usage_error(change, message):
    with pytest.raises(UsageError) as caught:
        override(Recipe("first"), [change])
    assert message in str(caught.value)


def test_changes_may_make_sense_together_where_one_alone_does_not():
    @dataclass(frozen=True)
    class Data:
        dev: str | None = None
        develop: int = 0

        def __post_init__(self):
            if (self.dev is None) == (not self.develop):
                raise UsageError("give one of the two")

    given = Data(dev="a file")
    assert override(given, ["dev=none", "develop=5"]) == override(given, ["develop=5", "dev=none"]) == Data(develop=5)
    for alone in ("develop=5", "dev=none"):
        with pytest.raises(UsageError, match="give one of the two"):
            override(given, [alone])


def test_differences_are_reported_by_full_names():
    old, new = Recipe("a", Training(steps=1)), Recipe("a", Training(steps=2), note="n")
    assert differences(to_dict(old), to_dict(new)) == {"training.steps": (1, 2), "note": (None, "n")}
    assert differences(to_dict(old), to_dict(old)) == {}


def test_a_file_of_an_earlier_version_has_the_defaults_of_what_it_lacks(tmp_path):
    file, recipe = tmp_path / "recipe.toml", Recipe("a", Training(learning_rate=0.5))
    file.write_text(to_toml(recipe))
    assert changed(file, recipe) == {}
    assert changed(file, Recipe("a", Training())) == {"training.learning_rate": (0.5, Training().learning_rate)}
    file.write_text(written := to_toml(recipe).replace("learning_rate = 0.5\n", ""))
    assert changed(file, Recipe("a", Training())) == {}
    assert changed(file, recipe) == {"training.learning_rate": (Training().learning_rate, 0.5)}
    file.write_text(f"gone = 1\n{written}")
    assert changed(file, Recipe("a", Training()))["gone"] == (1, None)


def test_what_may_be_none_must_be_none_by_default():
    @dataclass(frozen=True)
    class Wrong:
        steps: int | None = 3

    with pytest.raises(TypeError, match=r"Wrong\.steps may be None, so None must be its default"):
        from_dict(Wrong, {})
