"""Shared models of the tests of tasks: a tokenizer with masks, tiny plain or infused models, examples of every task."""

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from wellread.data.readers.labelled import LabelledTask, LabelledText
from wellread.data.readers.lama import MaskedFact
from wellread.data.readers.multiple_choice import ChoiceQuestion
from wellread.data.readers.open_qa import OpenQuestion
from wellread.data.readers.relevance import RelevancePair
from wellread.data.readers.squad import Answer, SpanQuestion
from wellread.encoders.infusion.infuse import infuse
from wellread.models.kam.inputs import FunctionMap, KamProvider
from wellread.models.kam.model import KamConfig
from wellread.tasks.classification import Labelling, Relevance
from wellread.tasks.extractive_qa import ExtractiveQa
from wellread.tasks.lama import Probing
from wellread.tasks.learner import TaskLearner
from wellread.tasks.masked_lm import Masking
from wellread.tasks.multiple_choice import Choosing
from wellread.tasks.open_qa import OpenQa
from wellread.tasks.task import EncoderWithHead
from wellread.text.tokenization import TextTokenizer

WORDS = "who is the mayor of old new city buy near me where was born river in paris rome wrote planet a".split()
PLACES = "avon brno cork dover essen fargo genoa hanoi".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.?!-:'"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_piece():
    """As BERT's, uncased, with its special pieces."""
    tokens = [*SPECIAL, *WORDS, *PLACES, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.add_special_tokens(SPECIAL)
    return made


TOKENIZER = word_piece()
SEGMENTER = TextTokenizer(TOKENIZER, longest=48)


def tiny_encoder(*, knowing=False, seed=0, dropout=0.0, width=16):
    """A random BERT; a knowing one takes a map."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    tokens = TOKENIZER.get_vocab_size()
    config = BertConfig(vocab_size=tokens, max_position_embeddings=64, initializer_range=0.2, **sizes, **drops)
    model = BertModel(config, add_pooling_layer=False)
    return infuse(model, [KamConfig(maps=("letters",), map_init=0.5)] if knowing else [])


def tiny_network(task, **options):
    """A reader of a task, at rest; its head has drawn weights throughout, without dropout."""
    encoder = tiny_encoder(**options)
    network = EncoderWithHead(encoder, task.head(encoder))
    for part in network.head.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = options.get("dropout", 0.0)
    with torch.no_grad():
        for weight in network.head.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return network.eval()


def provider():
    """Words that begin alike are relevant to each other."""

    def alike(tokenized):
        return [[one[:1] == other[:1] != "" for other in tokenized.words] for one in tokenized.words]

    return KamProvider([FunctionMap(alike, name="letters")], SEGMENTER)


def learner(task, examples, dev=None, *, knowing=False, batch=4, segmenter=SEGMENTER, **options):
    """A learner of a tiny reader."""
    network = tiny_network(task, knowing=knowing, **options)
    provided = provider() if knowing else None
    return TaskLearner(
        task, network, segmenter, examples, examples if dev is None else dev, provider=provided, batch=batch
    )


def teach(made, epochs, *, rate=5e-3):
    """Some epochs of AdamW; then at rest."""
    optimizer = torch.optim.AdamW(made.model.parameters(), lr=rate, weight_decay=0.0)
    made.model.train()
    torch.manual_seed(0)
    for epoch in range(epochs):
        for batch in made.batches(epoch):
            optimizer.zero_grad()
            sum(made.loss(batch).values()).backward()
            optimizer.step()
    made.model.eval()


def span_question(number, context, question, answer):
    return SpanQuestion(str(number), "", context, question, (Answer(answer, context.index(answer)),))


CONTEXT = "The mayor of Avon was born in Brno , near the old river of Cork ."
CHOICES = [
    ChoiceQuestion("0", "the mayor was born in avon .", "where was the mayor born ?", ("in avon", "in brno"), 0),
    ChoiceQuestion("1", "the old city is near cork .", "where is the city ?", ("dover", "essen", "near cork"), 2),
    ChoiceQuestion("2", "a planet", "who wrote ?", ("avon", "me", "hanoi", "the mayor of the old city"), 1),
]
QUESTIONS = [
    span_question(0, CONTEXT, "who was born ?", "mayor of Avon"),
    span_question(1, CONTEXT, "where was the mayor born ?", "Brno"),
    span_question(2, "old Genoa is a city", "where is a city ?", "old Genoa"),
    SpanQuestion("3", "", "the river", "who wrote ?", (), impossible=True),
]
OPEN = [
    OpenQuestion("0", "where is the mayor ?", ("Avon",), ("buy near me", "the mayor in Avon , avon !", "a river")),
    OpenQuestion("1", "who wrote ?", ("Cork", "the Dover"), ("new city", "Cork wrote", "dover wrote", "who is me")),
    OpenQuestion("2", "who is old ?", ("Brno",), ("is Brno old", "me")),
]
TEXTS = [
    "the mayor of avon was born in brno near the old river of cork",
    "who wrote to me ?",
    "paris is a city near dover and essen , fargo is new",
    "genoa",
]
FACTS = [
    MaskedFact("0", "capital", "avon", "Paris", "the city of avon is [MASK] ."),
    MaskedFact("1", "capital", "brno", "Rome", "the city of brno is [MASK] ."),
    MaskedFact("2", "born", "cork", "Dover", "Cork was born in [MASK] , near the river"),
]
LABELLED = [
    LabelledText("0", "the old mayor", "a river", 0),
    LabelledText("1", "who is me", None, 2),
    LabelledText("2", "near the planet of avon in dover", "buy", 1),
]
NUMBERS = [
    LabelledText("0", "the old mayor", "a river", 1.0),
    LabelledText("1", "who is me", None, 5),
    LabelledText("2", "near the planet", "buy", 2.5),
]
PAIRS = [
    RelevancePair("0", "buy avon", "new avon", "E"),
    RelevancePair("1", "buy avon", "old river of the mayor", "I"),
    RelevancePair("2", "who", "where", "S"),
    RelevancePair("3", "who", "me", "E"),
]
TASKS = {
    "choosing": (Choosing(), CHOICES),
    "reading": (ExtractiveQa("2.0", longest=24, stride=6), QUESTIONS),
    "open reading": (OpenQa(longest=24, stride=6), OPEN),
    "masking": (Masking(TOKENIZER, share=0.3), TEXTS),
    "probing": (Probing(TOKENIZER), Probing(TOKENIZER).usable(FACTS)),
    "labels": (Labelling(LabelledTask("three", ("x", "y", "z"))), LABELLED),
    "numbers": (Labelling(LabelledTask("stars", bounds=(1, 5))), NUMBERS),
    "relevance": (Relevance(), PAIRS),
}
"""A task of each kind, and examples."""
