"""Tiny models and a toy knowledge base: what tests of the linker need, without a download.

An encoder is a random BERT in a Hugging Face folder. One without `reach` does not know what stands beside a piece, nor
where it stands: its states are the same wherever a text is cut.
"""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel
from transformers.utils import logging

from wellread.document import Document, Link
from wellread.kb.build import Origin, build
from wellread.kb.records import Entity
from wellread.kb.store import KnowledgeBase
from wellread.models.elq.config import ElqConfig
from wellread.models.elq.model import Elq
from wellread.models.elq.training_task import LinkingLearner

PLACES = "avon brno cork dover essen fargo genoa hanoi izmir jena kobe lagos".split()
PEOPLE = "ada bela cleo dora emil fritz greta hugo ines jorge karl lena".split()
WORDS = "who what is the of in a mayor was born near river wrote to and mercury planet god city person old new".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
FRAMES = ("who is the mayor of {}", "was {} born near the river", "what is {}", "{} wrote to the old city", "in {} ?")

ENTITIES = [
    *(Entity(f"p{n}", name, f"a city near the river {name}", "city", 1, {name: 3}) for n, name in enumerate(PLACES)),
    *(Entity(f"h{n}", name, f"a person who wrote , {name}", "person", 1, {name: 3}) for n, name in enumerate(PEOPLE)),
    Entity("planet", "mercury planet", "planet", "thing", 1, {"mercury": 6}),
    Entity("god", "mercury god", "old god", "thing", 1, {"mercury": 2}),
]


def tokenizer() -> Tokenizer:
    """WordPiece over some words and every letter."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789,.?!-:'"
    tokens = [*SPECIAL, *WORDS, *PLACES, *PEOPLE, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=60))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return made


def write_encoder(folder: Path, *, width: int = 16, layers: int = 2, seed: int = 0, reach: bool = True) -> str:
    """A random BERT with its tokenizer; returns the folder's name as a config has it."""
    torch.manual_seed(seed)
    tokens = tokenizer()
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertModel(
        BertConfig(vocab_size=tokens.get_vocab_size(), max_position_embeddings=256, initializer_range=0.3, **sizes),
        add_pooling_layer=False,
    )
    if not reach:
        model.embeddings.position_embeddings.weight.data.zero_()
        for layer in model.encoder.layer:
            layer.attention.output.dense.weight.data.zero_()
            layer.attention.output.dense.bias.data.zero_()
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    logging.enable_progress_bar()
    tokens.save(str(folder / "tokenizer.json"))
    return str(folder)


def make_elq(encoder: str, **options: object) -> Elq:
    """A linker that has not learned, always the same."""
    torch.manual_seed(1)
    return Elq.create(ElqConfig(**{"encoder": encoder, "rank": 4, "entity_pieces": 16, **options})).eval()


def shake(model: Elq, seed: int = 2) -> Elq:
    """Move every weight that learns, so that nothing is as it was made (adapters begin at zero)."""
    chance = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.1 * torch.randn(weight.shape, generator=chance)
    return model


def write_kb(path: Path, entities: list[Entity] = ENTITIES) -> KnowledgeBase:
    """A knowledge base, open for writing."""
    build(lambda tally: iter(entities), path, origin=Origin("test"))
    return KnowledgeBase.open(path, writable=True)


def document(text: str, *links: tuple[str, str | None], unsure: tuple[tuple[int, int], ...] = ()) -> Document:
    """A document with links at the first place of each name: `document("in cork", ("cork", "p2"))`."""
    found = []
    for name, entity in links:
        start = text.index(name)
        found.append(Link(start, start + len(name), name, entity))
    meta = {"unsure": [list(span) for span in unsure]} if unsure else {}
    return Document(text, tuple(sorted(found, key=lambda link: link.start)), meta=meta)


def toy_documents(count: int, seed: int = 0) -> list[Document]:
    """Questions about the toy KB."""
    chance = random.Random(seed)
    named = [entity for entity in ENTITIES if entity.kind != "thing"]
    made = []
    for _ in range(count):
        entity = chance.choice(named)
        made.append(document(chance.choice(FRAMES).format(entity.title), (entity.title, entity.id)))
    return made


def teach(learner: LinkingLearner, epochs: int, *, rate: float = 2e-2) -> list[float]:
    """A few epochs of plain AdamW; the loss of every step."""
    weights = [weight for weight in learner.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    losses = []
    learner.model.train()
    for epoch in range(epochs):
        for batch in learner.batches(epoch):
            loss = torch.stack(list(learner.loss(batch).values())).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    learner.model.eval()
    return losses
