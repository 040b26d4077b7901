"""Quantization: 8-bit entities agree with the projection and can be extended; 4-bit matrices lose little."""

import numpy as np
import pytest
import torch

from tests.infused_models import shake
from wellread.errors import InputError, UsageError
from wellread.models.knowbert.entity_tables import EntityProjection, EntityTable
from wellread.models.knowbert.linker_vectors import EntityProjector, Int8Entities
from wellread.models.knowbert.quantization import GROUP, Int8EntityTable, decode_4bit, encode_4bit

IDS = [f"e{number}" for number in range(50)]


@pytest.fixture
def projection():
    torch.manual_seed(0)
    made = EntityProjection(6, 8, kinds=3, kind_width=2)
    torch.nn.init.normal_(made.mask)
    shake(made)
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(50, 6)).astype(np.float16)
    made.take(EntityTable(vectors, draw.integers(0, 3, 50)))
    return made.eval().requires_grad_(False)


def looked_up(entities, wanted):
    vectors, rows = entities.look_up(wanted)
    vectors, rows = np.asarray(vectors), np.asarray(rows)
    return np.where(rows[..., None] >= 0, vectors[np.maximum(rows, 0)], 0)


def in_numpy(projection):
    return EntityProjector.of({name: weight.numpy() for name, weight in projection.state_dict().items()})


def test_the_table_is_the_projection_in_8_bits(projection, tmp_path):
    Int8EntityTable.build(projection, IDS, fingerprint="f", kinds="abc").save(tmp_path / "entities.safetensors")
    table = Int8EntityTable.load(tmp_path / "entities.safetensors")
    assert (len(table), table.dim, table.fingerprint, table.kinds) == (50, 8, "f", ("a", "b", "c"))
    assert sorted(table.rows_of(IDS).tolist()) == list(range(50))
    assert table.rows_of(["e3", "unknown", "e4"]).tolist()[1] == -1
    raw = torch.tensor([[3, 49, -1], [-2, 3, 0]])
    rows = np.where(raw >= 0, table.rows_of(IDS)[raw.clamp(min=0)], raw)
    expected = looked_up(projection, raw)
    found = looked_up(Int8Entities(table, in_numpy(projection)), rows)
    assert np.abs(found - expected).max() < 0.01 * np.abs(expected).max()
    assert np.abs(found[0, 0] - expected[0, 0]).max() > 0  # it is rounded


def test_added_entities_are_projected(projection):
    added = Int8Entities(Int8EntityTable.build(projection, IDS), in_numpy(projection))
    vectors = torch.randn(2, 6)
    rows = added.add(vectors.numpy(), np.array([2, 0]))
    assert rows.tolist() == [50, 51]
    expected = projection.norm(projection._project(vectors, torch.tensor([2, 0])))
    found = looked_up(added, np.array([[51, -2, 50]]))
    np.testing.assert_allclose(found[0, [2, 0]], expected, atol=1e-5)
    np.testing.assert_allclose(found[0, 1], projection.norm(projection.mask), atol=1e-5)
    added.clear_added()
    with pytest.raises(UsageError, match="rows 51 to 51 of entities, of which there are 50"):
        added.look_up(np.array([[51]]))


def test_without_candidates_there_is_nothing_to_look_up(projection):
    entities = Int8Entities(Int8EntityTable.build(projection, IDS), in_numpy(projection))
    vectors, rows = entities.look_up(np.zeros((0, 3), np.int64))
    assert (vectors.shape, rows.shape) == ((1, 8), (0, 3))


def test_a_million_ids_would_have_longer_hashes(projection, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "wellread.models.knowbert.quantization._key", lambda id, width: int(id[1:]) if width == 8 else 7
    )
    table = Int8EntityTable.build(projection, IDS)
    table.save(tmp_path / "t")
    assert (table.width, Int8EntityTable.load(tmp_path / "t").rows_of(["e7", "e49"]).tolist()) == (8, [7, 49])


def test_wordnet_fits_into_ten_mebibytes():
    rows, dim = 117_659, 80
    assert rows * (dim + 2 + 5) < 10 << 20


@pytest.mark.parametrize("damage", ["cut", "other", "none"])
def test_a_damaged_table_says_so(projection, tmp_path, damage):
    path = tmp_path / "entities.safetensors"
    if damage != "none":
        Int8EntityTable.build(projection, IDS).save(path)
        data = path.read_bytes()
        path.write_bytes(data[:-9] if damage == "cut" else data.replace(b"ready entities 1", b"ready entities 9"))
    with pytest.raises(InputError, match="copy the linker's folder again"):
        Int8EntityTable.load(path)


def test_ids_and_vectors_must_be_as_many(projection):
    with pytest.raises(UsageError, match="49 ids for 50 entity vectors"):
        Int8EntityTable.build(projection, IDS[1:])
    with pytest.raises(UsageError, match="given twice"):
        Int8EntityTable.build(projection, ["e1"] * 50)


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("shape", [(5, 128), (3, 100), (2, 1), (4, GROUP), (1, GROUP + 1)])
def test_a_matrix_comes_back_nearly(shape):
    matrix = draw(*shape) * 0.01
    codes, scales = encode_4bit(matrix)
    groups = -(-shape[1] // GROUP)
    assert codes.shape == (shape[0], groups * GROUP // 2)
    assert codes.dtype == np.uint8
    assert scales.shape == (shape[0], groups)
    assert scales.dtype == np.float16
    back = decode_4bit(codes, scales, shape[1])
    assert back.shape == shape
    assert np.linalg.norm(back - matrix) / np.linalg.norm(matrix) < 0.12


def test_what_is_a_code_is_kept_exactly():
    matrix = np.tile(np.arange(-7.0, 8.0), (2, 5)) * 0.125
    assert np.array_equal(decode_4bit(*encode_4bit(matrix), matrix.shape[1]), matrix)


def test_nothing_stays_nothing():
    assert not decode_4bit(*encode_4bit(np.zeros((2, 70))), 70).any()


def test_one_large_number_spoils_only_its_group():
    matrix = draw(1, 2 * GROUP)
    matrix[0, 0] = 1000.0
    back = decode_4bit(*encode_4bit(matrix), 2 * GROUP)
    assert back[0, 0] == pytest.approx(1000.0, rel=0.01)
    assert np.linalg.norm((back - matrix)[:, GROUP:]) / np.linalg.norm(matrix[:, GROUP:]) < 0.12


def test_scales_lose_less_than_the_largest_number_would():
    groups = draw(64, 4, GROUP)
    matrix = groups.reshape(64, -1)
    largest = np.abs(groups).max(-1, keepdims=True) / 7
    plain = (np.rint(groups / largest) * largest).reshape(64, -1)
    back = decode_4bit(*encode_4bit(matrix), 4 * GROUP)
    assert np.linalg.norm(back - matrix) < 0.95 * np.linalg.norm(plain - matrix)


def test_numbers_too_small_for_a_scale_become_nothing():
    assert np.abs(decode_4bit(*encode_4bit(np.full((1, GROUP), 1e-9)), GROUP)).max() < 1e-6
