"""English function words, which rarely name an entity.

There are two lists, because word senses need the second: "is" is a form of the verb "be", which has thirteen senses.
"""

from __future__ import annotations

from wellread.errors import MissingExtraError, install_extra

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those each every either neither some any no all both half such what which whose whatever
    i me my mine myself you your yours yourself yourselves he him his himself she her hers herself it its itself we us
    our ours ourselves they them their theirs themselves one ones who whom whoever someone anyone everyone nobody
    something anything everything nothing
    and or but nor so yet if then than because although though unless until while whereas whether as since
    of in on at by for with from to into onto upon about above across after against along among around before behind
    below beneath beside besides between beyond despite down during except inside near off out outside over past per
    through throughout till toward towards under underneath unlike up via within without
    not n't here there where when why how whenever wherever however too very just only also even again ever never
    s t d m ll re ve
    """.split()
)

AUXILIARIES = frozenset(
    """
    be am is are was were been being have has had having do does did done doing will would shall should can could may
    might must ought isn aren wasn weren hasn haven hadn don doesn didn won wouldn shan shouldn couldn mightn mustn
    """.split()
)

STOP_WORDS = FUNCTION_WORDS | AUXILIARIES


def spacy_stop_words() -> tuple[str, ...]:
    """Return spaCy's English stop words; no Wikipedia mention of KnowBERT's authors begins or ends with one."""
    try:
        from spacy.lang.en.stop_words import STOP_WORDS as FOUND
    except ImportError:
        raise MissingExtraError(
            f'stop_words = "knowbert" takes spaCy\'s list, and spaCy is not installed; {install_extra("spacy")}'
        ) from None
    return tuple(sorted(FOUND))
