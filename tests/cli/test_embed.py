"""Vectors of pieces, words, mentions and texts: the encoder's own states, wherever a text is cut, in two formats."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.knowbert_data import write_with_layer
from tests.toy_models import write_kb
from wellread.document import Document, Link
from wellread.encoders.files import load_tokenizer
from wellread.encoders.load import load_encoder
from wellread.encoders.packing import Packing, encode
from wellread.errors import UsageError
from wellread.inference.embed import Embedder
from wellread.kb.records import Entity

TEXT = "Who is the mayor of Cork?"
LINKS = (Link(11, 24, "mayor of Cork", "m", kb="toy", score=0.5), Link(20, 24, "Cork", None, kb="toy"))


def embedder(folder, **options):
    return Embedder.build(load_encoder(folder), load_tokenizer(folder), **options)


def joined(rows):
    found = list(rows)
    names = [name for some in found for name in some.names]
    spans = [tuple(span) for some in found for span in some.spans.tolist()]
    vectors, texts = (np.concatenate([getattr(some, name) for some in found]) for name in ("vectors", "texts"))
    more = {key: [value for some in found for value in some.more[key]] for key in found[0].more}
    return SimpleNamespace(names=names, spans=spans, vectors=vectors, texts=texts.tolist(), more=more)


def states(folder, text):
    """Return the states of a text, computed by the encoder alone."""
    code = load_tokenizer(folder).encode(text)
    with torch.no_grad():
        found = encode(load_encoder(folder).eval(), torch.tensor(code.ids), Packing.of([len(code.ids)])).numpy()
    return code, found


def test_pieces_have_the_states_of_the_encoder(encoder):
    rows = joined(embedder(encoder).embed([Document(TEXT)], of="pieces"))
    code, expected = states(encoder, TEXT)
    np.testing.assert_allclose(rows.vectors, expected[1:-1], atol=1e-5)
    assert (rows.more["piece"], rows.spans) == (code.ids[1:-1], code.offsets[1:-1])


def test_words_and_mentions_are_means_of_their_pieces(encoder):
    code, expected = states(encoder, "fargo xyz Cork")
    words = joined(embedder(encoder).embed([Document("fargo xyz Cork")], of="words"))
    assert words.names == ["fargo", "xyz", "Cork"]
    inside = [place for place, (start, end) in enumerate(code.offsets) if start >= 6 and 0 < end <= 9]
    assert len(inside) == 3
    np.testing.assert_allclose(words.vectors[1], expected[inside].mean(0), atol=1e-5)
    mentions = joined(embedder(encoder).embed([Document(TEXT, LINKS)], of="mentions"))
    code, expected = states(encoder, TEXT)
    np.testing.assert_allclose(mentions.vectors[0], expected[4:7].mean(0), atol=1e-5)
    np.testing.assert_allclose(mentions.vectors[1], expected[6], atol=1e-5)
    assert mentions.names == ["mayor of Cork", "Cork"]
    assert mentions.more == {"entity": ["m", ""], "kb": ["toy", "toy"], "score": [0.5, 1.0]}


def test_texts_are_the_mean_of_all_pieces_or_the_first(encoder):
    documents = [Document(TEXT), Document(""), Document("the old city")]
    mean = joined(embedder(encoder).embed(documents))
    np.testing.assert_allclose(mean.vectors[0], states(encoder, TEXT)[1].mean(0), atol=1e-5)
    np.testing.assert_allclose(mean.vectors[2], states(encoder, "the old city")[1].mean(0), atol=1e-5)
    assert (mean.texts, not mean.vectors[1].any(), mean.spans[0]) == ([0, 1, 2], True, (0, len(TEXT)))
    first = joined(embedder(encoder).embed(documents, pooling="first", unit=True))
    expected = states(encoder, TEXT)[1][0]
    np.testing.assert_allclose(first.vectors[0], expected / np.linalg.norm(expected), atol=1e-5)


@pytest.mark.parametrize("of", ["pieces", "words", "mentions", "texts"])
def test_where_a_text_is_cut_says_nothing(plain_encoder, of):
    """The encoder sees no neighbours, so windows make no difference."""
    text = " ".join([TEXT] * 30)
    links = tuple(Link(start, start + 4, "Cork", "p2") for start in range(len(text)) if text.startswith("Cork", start))
    given = [Document("near Essen"), Document(text, links), Document("the end")]
    whole, tokenized = (joined(embedder(plain_encoder, width=width).embed(given, of=of)) for width in (256, 20))
    assert (tokenized.names, tokenized.spans, tokenized.texts) == (whole.names, whole.spans, whole.texts)
    assert len(tokenized.spans) == {"pieces": 216, "words": 214, "mentions": 30, "texts": 3}[of]
    # The special pieces of each window count in a text's mean.
    np.testing.assert_allclose(tokenized.vectors, whole.vectors, atol=0.5 if of == "texts" else 1e-5)


def test_memory_does_not_grow_with_the_stream(encoder, monkeypatch):
    monkeypatch.setattr("wellread.inference.embed._TEXTS", 4)
    taken = []

    def stream():
        for number in range(100):
            taken.append(number)
            yield Document(f"the old city {number}")

    rows = embedder(encoder).embed(stream(), of="words")
    assert [len(next(rows).texts) for _ in range(2)] == [16, 16]
    assert len(taken) <= 9
    assert sum(len(some.texts) for some in rows) == 400 - 32


def test_an_infused_encoder_gets_its_candidates(encoder, tmp_path, wellread, monkeypatch):
    write_with_layer(tmp_path, encoder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wellread.assets.home", lambda: tmp_path)
    out = {}
    for text in ("mayor of Cork", "mayor of Jena"):
        result = wellread("embed", "--model", tmp_path / "model", "--of", "words", "--to", "v.npz", stdin=text)
        assert result.code == 0, result.err
        out[text] = np.load("v.npz")["vectors"]
    plain = joined(embedder(encoder).embed([Document("mayor of Cork")], of="words")).vectors
    assert np.abs(out["mayor of Cork"] - plain).max() > 1e-3
    assert out["mayor of Cork"].shape == out["mayor of Jena"].shape == (3, 16)


def test_npz_and_arrow_say_the_same(encoder, tmp_path, wellread):
    (tmp_path / "in.jsonl").write_text(
        "\n".join(Document(text, links).to_json() for text, links in ((TEXT, LINKS), ("nothing", ())))
    )
    said = []
    for file in ("out.npz", "out.arrow"):
        arguments = ("--model", encoder, "--documents", "--of", "mentions", "--unit", "--to", tmp_path / file)
        said.append(wellread("embed", tmp_path / "in.jsonl", *arguments))
    assert [(one.code, one.out) for one in said] == [(0, ""), (0, "")]
    assert "2 vectors of 16 numbers written to" in said[0].err
    found, table = np.load(tmp_path / "out.npz"), pa.ipc.open_file(str(tmp_path / "out.arrow")).read_all()
    assert sorted(found) == ["end", "entity", "kb", "score", "start", "text", "vectors"]
    assert table["name"].to_pylist() == ["mayor of Cork", "Cork"]
    for name in ("text", "start", "end", "entity", "kb", "score"):
        assert found[name].tolist() == table[name].to_pylist()
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    np.testing.assert_array_equal(found["vectors"], vectors)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_files_and_lines_are_texts(encoder, tmp_path, wellread):
    (tmp_path / "a.txt").write_text("near Cork\nin Essen\n")
    (tmp_path / "b.txt").write_text("the end")
    options = ("--model", encoder, "--half", "--to", tmp_path / "v.npz")
    for more, count in (((), 2), (("--lines",), 3)):
        assert wellread("embed", tmp_path / "a.txt", tmp_path / "b.txt", *options, *more).code == 0
        found = np.load(tmp_path / "v.npz")
        assert (found["text"].tolist(), found["vectors"].dtype) == (list(range(count)), np.float16)


def test_fewer_layers_give_other_states(encoder, tmp_path, wellread):
    vectors = []
    for layers in ("1", "2"):
        wellread("embed", "--model", encoder, "--layers", layers, "--to", tmp_path / "v.npz", stdin=TEXT)
        vectors.append(np.load(tmp_path / "v.npz")["vectors"])
    np.testing.assert_allclose(vectors[1][0], states(encoder, TEXT)[1].mean(0), atol=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01


def test_mentions_are_what_a_linker_finds(encoder, tmp_path, wellread):
    write_kb(tmp_path / "toy.kb", [Entity("c", "Cork", "a city", "city", 1, {"Cork": 2})]).close()
    options = ("--model", encoder, "--of", "mentions", "--linker", "prior", "--to", tmp_path / "v.arrow")
    assert wellread("embed", "--kb", tmp_path / "toy.kb", *options, stdin=TEXT).code == 0
    table = pa.ipc.open_file(str(tmp_path / "v.arrow")).read_all()
    assert table.select(["name", "entity", "kb", "start"]).to_pylist() == [
        {"name": "Cork", "entity": "c", "kb": "toy", "start": 20}
    ]


@pytest.mark.parametrize("of", ["texts", "words", "pieces", "mentions"])
@pytest.mark.parametrize("half", [[], ["--half"]], ids=["full", "half"])
def test_a_file_without_rows_has_the_columns_of_one_with_some(encoder, tmp_path, wellread, of, half):
    given = {"some": Document(TEXT, LINKS), "none": Document("", ())}
    tables, arrays = [], []
    for name, document in given.items():
        (tmp_path / f"{name}.jsonl").write_text(document.to_json() + "\n")
        for file in (tmp_path / f"{name}.npz", tmp_path / f"{name}.arrow"):
            arguments = ("--model", encoder, "--documents", "--of", of, *half, "--to", file)
            assert wellread("embed", tmp_path / f"{name}.jsonl", *arguments).code == 0
        tables.append(pa.ipc.open_file(str(tmp_path / f"{name}.arrow")).read_all())
        arrays.append(np.load(tmp_path / f"{name}.npz"))
    assert tables[0].schema == tables[1].schema
    assert list(arrays[0]) == list(arrays[1])
    rows = 1 if of == "texts" else 0  # an empty text is a text
    assert (tables[1].num_rows, arrays[1]["vectors"].shape) == (rows, (rows, 16))
    for name in arrays[0]:
        assert (arrays[0][name].dtype.kind, len(arrays[1][name])) == (arrays[1][name].dtype.kind, rows)


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "message"),
    [
        (["--to", "{}/v.txt"], "x", 2, "has an unknown suffix; expected one of .npz, .arrow"),
        (["--to", "{}/v.npz", "--of", "mentions"], "x", 2, "needs --kb or --documents"),
        (["--to", "{}/v.npz", "--kb", "vital"], "x", 2, "needs --of mentions"),
        (["--to", "{}/v.npz", "--lines", "--documents"], "x", 2, "omit --lines"),
        (["--to", "{}/v.npz", "--lines"], "", 3, "the input is empty"),
        (["--to", "{}/v.npz", "--documents"], "{{\n", 3, "standard input, line 1: not JSON"),
        (["--to", "{}/v.npz", "--layers", "9"], "x", 2, "has 2 layers, not 9"),
        (["--to", "{}/v.npz", "{}/none.txt"], "", 3, "none.txt"),
    ],
)
def test_what_goes_wrong_is_one_line_that_names_the_fix(wellread, encoder, tmp_path, arguments, stdin, code, message):
    given = [argument.format(tmp_path) for argument in arguments]
    result = wellread("embed", "--model", encoder, *given, stdin=stdin)
    assert (result.code, len(result.err.strip().splitlines())) == (code, 1), result.err
    assert message in result.err
    assert not list(tmp_path.iterdir())


def test_what_is_not_known_is_refused(encoder):
    with pytest.raises(UsageError, match="choose pieces, words, mentions, texts"):
        next(embedder(encoder).embed([Document(TEXT)], of="letters"))
    assert json.loads(Document(TEXT).to_json())["text"] == TEXT


def test_a_linker_is_no_encoder(wellread, tmp_path):
    (tmp_path / "a.txt").write_text("He sat on the bank.")
    result = wellread("embed", str(tmp_path / "a.txt"), "--model", "knowbert", "--to", str(tmp_path / "w.npz"))
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "knowbert is a linker, which returns links, not states; give an encoder" in result.err


def test_a_plain_encoder_embeds_without_torch(encoder, tmp_path):
    (tmp_path / "in.txt").write_text(TEXT)
    code = f"""
import sys
from wellread.cli.embed import command
command(["in.txt", "--model", {encoder!r}, "--of", "words", "--to", "out.npz"], standalone_mode=False)
print([name for name in ("torch", "transformers", "peft") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"
    expected = joined(embedder(encoder).embed([Document(TEXT)], of="words"))
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["vectors"], expected.vectors, atol=1e-5)
