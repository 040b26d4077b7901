"""Word forms are the pairs that morphy would accept, made the other way round."""

from hypothesis import given
from hypothesis import strategies as st

from wellread.kb.records import Form
from wellread.text.inflection import DETACH, word_forms
from wellread.text.stopwords import STOP_WORDS


def morphy(form, kind, words, exceptions):
    """WordNet's reading of a form (morphy(7WN)): exceptions first, else every ending that can be detached."""
    irregular = [entry.word for entry in exceptions if (entry.form, entry.kind) == (form, kind)]
    if irregular:
        return {word for word in irregular if (word, kind) in words}
    if kind == "n" and (len(form) <= 2 or form.endswith("ss")):
        return set()
    rests = (form[: len(form) - len(ending)] + rest for ending, rest in DETACH[kind] if form.endswith(ending))
    return {rest for rest in rests if (rest, kind) in words}


LETTERS = st.text("aemnsxyz", min_size=1, max_size=5)
WORDS = st.sets(st.tuples(LETTERS, st.sampled_from("nvar")), max_size=8)
EXCEPTIONS = st.lists(st.builds(Form, LETTERS, LETTERS, st.sampled_from("nvar")), max_size=4)


@given(WORDS, EXCEPTIONS)
def test_forms_are_what_morphy_takes_back_to_their_word(words, exceptions):
    made = {(form.form, form.word, form.kind) for form in word_forms(words, exceptions)}
    candidates = (
        {form for form, _, _ in made}
        | {entry.form for entry in exceptions}
        | {w + e for w, k in words for e, _ in DETACH[k]}
    )
    expected = {
        (form, word, kind)
        for form in candidates
        for kind in "nvar"
        for word in morphy(form, kind, words, exceptions)
        if word != form
    }
    regular = {entry for entry in expected if entry[0] not in STOP_WORDS or Form(*entry) in exceptions}
    assert made == regular


def test_regular_and_irregular_forms():
    words = {("goose", "n"), ("church", "n"), ("woman", "n"), ("city", "n"), ("bake", "v"), ("large", "a")}
    exceptions = [Form("geese", "goose", "n"), Form("mice", "mouse", "n")]
    found = {(form.form, form.word) for form in word_forms(words, exceptions)}
    assert {("geese", "goose"), ("churches", "church"), ("women", "woman"), ("cities", "city")} <= found
    assert {
        ("bakes", "bake"),
        ("baked", "bake"),
        ("baking", "bake"),
        ("larger", "large"),
        ("largest", "large"),
    } <= found
    assert "mice" not in {form for form, _ in found}  # its word is not there


def test_function_words_are_only_what_the_exceptions_say():
    words = {("wa", "n"), ("be", "v"), ("doe", "n"), ("do", "v"), ("hi", "n")}
    exceptions = [Form("was", "be", "v"), Form("does", "do", "v")]
    found = {(form.form, form.word) for form in word_forms(words, exceptions)}
    assert ("was", "be") in found
    assert ("does", "do") in found
    assert not {("was", "wa"), ("does", "doe"), ("his", "hi")} & found


def test_a_form_of_any_kind_fits_every_kind():
    found = {(form.form, form.word) for form in word_forms({("goose", "n")}, [Form("geese", "goose", "")])}
    assert ("geese", "goose") in found
