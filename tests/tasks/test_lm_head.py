"""The head of a masked language model: with others' weights it says what their models say."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.infused_models import FAMILIES, batch, build
from tests.map_data import byte_level, word_piece
from tests.task_models import TOKENIZER
from wellread.encoders.infusion.infuse import base_of, infuse
from wellread.errors import InputError, UsageError
from wellread.tasks.lm_head import WordHead, load_word_head, mask_of, words_of


def write(folder, family="Bert", **options):
    """A model of transformers with its head in a folder, and what it says of a batch."""
    model = build(family, "ForMaskedLM", **options)
    for part in model.modules():
        if isinstance(getattr(part, "bias", None), torch.nn.Parameter) and part.bias.shape == (50,):
            torch.nn.init.normal_(part.bias)
    model.save_pretrained(folder)
    given = batch((6, 6), family=family)
    with torch.no_grad():
        return model, given, model(**given).logits


def encoder_of(model):
    encoder = base_of(model)
    return infuse(encoder, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_with_a_head_gives_the_scores_of_its_own_model(family, tmp_path):
    model, given, expected = write(tmp_path, family)
    encoder = encoder_of(model)
    head = WordHead(encoder)
    assert load_word_head(head, str(tmp_path))
    with torch.no_grad():
        states = encoder(**given).last_hidden_state
        torch.testing.assert_close(head(states.flatten(0, 1)), expected.flatten(0, 1), rtol=0, atol=1e-5)


def change(folder, by):
    weights = by(load_file(folder / "model.safetensors"))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def test_old_names_of_norms_are_known(tmp_path):
    model, *_ = write(tmp_path)
    ours = {"weight": "gamma", "bias": "beta"}
    change(
        tmp_path,
        lambda weights: {
            name.replace("LayerNorm." + name.split(".")[-1], "LayerNorm." + ours.get(name.split(".")[-1], "")): weight
            for name, weight in weights.items()
        },
    )
    head = WordHead(encoder_of(model))
    assert load_word_head(head, str(tmp_path))
    assert torch.equal(head.norm.weight, model.cls.predictions.transform.LayerNorm.weight)


def test_a_file_of_torch_is_read_too(tmp_path):
    model, *_ = write(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    head = WordHead(encoder_of(model))
    assert load_word_head(head, str(tmp_path))
    assert torch.equal(head.dense.weight, model.cls.predictions.transform.dense.weight)


def test_a_checkpoint_without_a_head_leaves_it_as_it_starts(tmp_path):
    model = build("Bert")
    model.save_pretrained(tmp_path)
    head = WordHead(encoder_of(model))
    before = {name: weight.clone() for name, weight in head.state_dict().items()}
    assert not load_word_head(head, str(tmp_path))
    assert all(torch.equal(weight, before[name]) for name, weight in head.state_dict().items())


def test_half_a_head_and_one_with_other_vectors_are_refused(tmp_path):
    model, *_ = write(tmp_path)
    head = WordHead(encoder_of(model))
    whole = load_file(tmp_path / "model.safetensors")
    other = {"cls.predictions.decoder.weight": torch.zeros(50, 8)}
    change(tmp_path, lambda weights: weights | other)
    with pytest.raises(InputError, match="not tied to its embeddings"):
        load_word_head(head, str(tmp_path))
    change(tmp_path, lambda weights: {n: w for n, w in whole.items() if n != "cls.predictions.transform.dense.bias"})
    with pytest.raises(InputError, match=r"dense\.bias is missing"):
        load_word_head(head, str(tmp_path))


def test_the_mask_of_a_tokenizer_is_found_or_missed():
    assert mask_of(TOKENIZER) == ("[MASK]", TOKENIZER.token_to_id("[MASK]"))
    tokens = byte_level()
    tokens.add_special_tokens(["<mask>"])
    assert mask_of(tokens) == ("<mask>", tokens.token_to_id("<mask>"))
    with pytest.raises(UsageError, match="no mask token"):
        mask_of(word_piece())


def test_words_are_pieces_that_stand_alone():
    words = words_of(TOKENIZER)
    assert words["paris"] == TOKENIZER.token_to_id("paris")
    assert words["7"] == TOKENIZER.token_to_id("7")
    assert not {"[MASK]", "[CLS]", "##a", "Paris", ""} & words.keys()
    assert set(words.values()) <= set(TOKENIZER.get_vocab().values())
    alphabet = words_of(byte_level())
    assert alphabet == {}  # a blank and a letter are two of its pieces
