from __future__ import annotations

import pytest

from scorer.templates.parser import parse_template
from scorer.templates.types import Mark, Piece, Slot, TemplateError, Text

GOOD = """
name = "mine"
version = 3
description = "A template of my own"
join = "piecewise"
special_tokens = ["<|sep|>"]
instruction = "Be strict."

[readout]
kind = "labels"
labels = ["yes", "no"]
positive = "yes"

[orders]
query_first = [
    { text = "i: {instruction}", when = "instruction" },
    "{user_open}q: {query}<|sep|>{{d}}: ",
    "{document}\\nanswer:",
]
"""


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1
    return GOOD.replace(old, new)


def test_a_template_is_read_as_it_is_written() -> None:
    template = parse_template(GOOD, source="mine.toml")

    assert template.id == "mine@3"
    assert (template.readout, template.labels, template.positive) == ("labels", ("yes", "no"), "yes")
    assert (template.join, template.instruction, template.system) == ("piecewise", "Be strict.", "")
    assert template.orders == ("query_first",)
    assert template.layouts["query_first"] == (
        Piece((Text("i: "), Slot("instruction")), when="instruction"),
        Piece((Mark("user_open"), Text("q: "), Slot("query"), Text("<|sep|>{d}: "))),
        Piece((Slot("document"), Text("\nanswer:"))),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('join = "piecewise"', 'join = "glued"', ["join is 'glued'", "joined or piecewise"]),
        ("version = 3", "version = 0", ["version is 0", "at least 1"]),
        ("version = 3", "version = true", ["version is True"]),
        ("version = 3", "", ["version is missing"]),
        ("version = 3", "version = 3\ntemperature = 0.5", ["temperature is 0.5", "no such key", "version"]),
        ('name = "mine"', 'name = "My Template"', ["name is 'My Template'", "hyphens"]),
        ('name = "mine"', "name = 7", ["name is 7", "text"]),
        ('kind = "labels"', 'kind = "regression"', ["readout.kind is 'regression'", "labels or likelihood"]),
        ('["yes", "no"]', "[]", ["readout.labels is []", "at least one"]),
        ('["yes", "no"]', '["yes", ""]', ["readout.labels is ['yes', '']", "none empty"]),
        ('["yes", "no"]', '["yes", "yes"]', ["readout.labels", "no two alike"]),
        ('["yes", "no"]', '"yes"', ["readout.labels is 'yes'", "a list"]),
        ('positive = "yes"', 'positive = "maybe"', ["readout.positive is 'maybe'", "yes or no"]),
        ('positive = "yes"', 'positive = "yes"\nscale = 5', ["readout.scale is 5", "no such key"]),
        ("{query}", "{question}", ["orders.query_first is '{question}'", "a slot (system, instruction, labels, query"]),
        ("{query}", "{query!r}", ["orders.query_first is '{query}'"]),
        ("{query}", "{}", ["orders.query_first is '{}'"]),
        ("{query}", "{query", ["orders.query_first", "balanced braces"]),
        ("{query}", "", ["orders.query_first is ['instruction', 'document']", "{query} is at fault"]),
        ("{query}", "{query}{query}", ["orders.query_first", "{query} is at fault"]),
        ("{document}\\nanswer", "\\nanswer", ["orders.query_first", "{document} is at fault"]),
        ("query_first = [", "document_first = [", ["orders.document_first", "in the order that the key says"]),
        ("query_first = [", "any = [", ["orders.any is", "no such key"]),
        ('when = "instruction"', 'when = "system"', ["orders.query_first is 'system'", "{instruction}"]),
        ('when = "instruction"', 'when = "never"', ["orders.query_first.0.when is 'never'", "chat or plain"]),
        ('when = "instruction"', 'if = "chat"', ["orders.query_first.0.when is missing"]),
        ('"{document}\\nanswer:",', '"{document}\\nanswer:", 5,', ["orders.query_first is 5", "texts and tables"]),
        ('"Be strict."', '"Be <|sep|> strict."', ["instruction is 'Be <|sep|> strict.'", "belongs in a literal"]),
        ('"Be strict."', '"Be strict."\nsystem = "You judge."', ["system is 'You judge.'", "no slot {system}"]),
        ('["<|sep|>"]', '["<|sep|>", "<|gap|>"]', ["special_tokens is '<|gap|>'", "named in a literal"]),
        ('["<|sep|>"]', '["<|sep|>", ""]', ["special_tokens is ''"]),
        ("[orders]", "[orders", ["not TOML"]),
    ],
)
def test_a_wrong_template_is_refused_by_file_key_and_value(old: str, new: str, words: list[str]) -> None:
    with pytest.raises(TemplateError) as refusal:
        parse_template(changed(old, new), source="mine.toml")

    message = str(refusal.value)
    assert message.startswith("mine.toml: ")
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    ("readout", "words"),
    [
        ('labels = ["a"]\npositive = "a"\nscore = "difference"', ["readout.score is 'difference'", "two labels"]),
        ('labels = ["a"]\npositive = "a"\nscore = "best"', ["readout.score is 'best'"]),
        ('labels = ["a"]\npositive = "a"\nscore = "logit"\nscale = 0', ["readout.scale is 0", "above 0"]),
        ('labels = ["a"]\npositive = "a"\nscore = "logit"\noffset = "x"', ["readout.offset is 'x'", "number"]),
        ('labels = ["a"]\npositive = "a"\nscore = "logit"\noffset = nan', ["readout.offset is nan", "finite"]),
        ('labels = ["a"]\npositive = "a"\nvalues = [1]', ["readout.values", "no such key"]),
        ('labels = ["a", "b"]\nscore = "expected"', ["readout.values is missing"]),
        ('labels = ["a", "b"]\nscore = "expected"\nvalues = [1]', ["readout.values is [1.0]", "2 numbers"]),
        ('labels = ["a", "b"]\nscore = "expected"\nvalues = [1, 1]', ["not all alike"]),
        ('labels = ["a", "b"]\nscore = "expected"\nvalues = [1, "2"]', ["a list of finite numbers"]),
        (
            'labels = ["a", "b"]\nscore = "expected"\nvalues = [0, 1]\npositive = "a"',
            ["readout.positive", "no such key"],
        ),
        ('labels = ["a"]\npositive = "a"\ndebias = "rotate"', ["readout.debias is 'rotate'", "spells out no labels"]),
        ('labels = ["a"]\npositive = "a"\ndebias = "shuffle"', ["readout.debias is 'shuffle'", "reverse or rotate"]),
    ],
)
def test_a_wrong_score_is_refused_by_file_key_and_value(readout: str, words: list[str]) -> None:
    start, end = GOOD.index('labels = ["yes'), GOOD.index("[orders]")
    with pytest.raises(TemplateError) as refusal:
        parse_template(GOOD[:start] + readout + "\n" + GOOD[end:], source="mine.toml")

    message = str(refusal.value)
    assert [word for word in words if word not in message] == [], message


LISTED = """
name = "listed"
version = 1
description = "Lists options"
join = "joined"
[listing]
of = "options"
entry = "{label}. {text}"
separator = "\\n"
[readout]
kind = "labels"
labels = ["A", "B"]
debias = "rotate"
[orders]
document_first = ["{document}\\n{query}\\n{options}\\nAnswer:"]
"""


def test_a_template_may_list_options_or_documents() -> None:
    options = parse_template(LISTED, source="l.toml")
    sets = LISTED.replace('"options"', '"documents"').replace("\\n{options}", "").replace("{document}", "{documents}")
    documents = parse_template(sets.replace("separator", "compare = 2\nseparator"), source="l.toml")

    assert options.listing is not None
    assert options.listing.render(["A", "B"], ["x", "{y}"]) == "A. x\nB. {y}"
    assert (options.debias, options.positive, options.permutable) == ("rotate", None, True)
    assert documents.listing is not None
    assert (documents.listing.of, documents.listing.compare) == ("documents", 2)
    assert documents.has_slot("document")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('of = "options"', 'of = "labels"', ["listing.of is 'labels'", "options or documents"]),
        ("{label}. {text}", "{text}", ["listing.entry is '{text}'", "{label} and then {text}"]),
        ("{label}. {text}", "{label", ["listing.entry", "balanced braces"]),
        ("\\n{options}", "", ["{options} is at fault"]),
        ("{document}", "{documents}", ["'{documents}'", "options"]),
        ("separator", "compare = 2\nseparator", ["listing.compare", "options stand together"]),
        ('debias = "rotate"', 'score = "logit"', ["readout.score is 'logit'", "compete"]),
        ('debias = "rotate"', 'positive = "A"', ["readout.positive", "no such key"]),
    ],
)
def test_a_wrong_listing_is_refused(old: str, new: str, words: list[str]) -> None:
    with pytest.raises(TemplateError) as refusal:
        parse_template(LISTED.replace(old, new), source="l.toml")

    message = str(refusal.value)
    assert [word for word in words if word not in message] == [], message


def test_options_without_a_listing_are_no_slot() -> None:
    with pytest.raises(TemplateError, match=r"'\{options\}'"):
        parse_template(changed("{document}", "{options}{document}"), source="mine.toml")


def test_under_the_joined_rule_a_label_follows_a_text_of_the_template() -> None:
    joined = changed('"piecewise"', '"joined"').replace("{document}\\nanswer:", "{document}")

    with pytest.raises(TemplateError, match="text after the last slot"):
        parse_template(joined, source="mine.toml")
    assert parse_template(joined.replace('"joined"', '"piecewise"'), source="mine.toml").join == "piecewise"


def test_a_piece_may_be_tokenised_with_the_next_one() -> None:
    together = changed('when = "instruction" }', 'when = "instruction", with_next = true }')
    alone = GOOD.replace('"{document}\\nanswer:",', '{ text = "{document}\\nanswer:", with_next = true },')

    assert parse_template(together, source="t.toml").layouts["query_first"][0].with_next
    with pytest.raises(TemplateError, match="with_next"):
        parse_template(alone, source="t.toml")


def test_a_template_without_orders_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"orders is .*document_first, query_first"):
        parse_template(GOOD[: GOOD.index("query_first")], source="mine.toml")


def test_a_likelihood_template_ends_in_the_query() -> None:
    readout = GOOD[GOOD.index('kind = "labels"') : GOOD.index("[orders]")]
    likelihood = GOOD.replace(readout, 'kind = "likelihood"\n').replace('"{document}\\nanswer:"', '"{document}"')
    for order in (likelihood, likelihood.replace("query_first", "document_first")):
        with pytest.raises(TemplateError, match=r"orders\.(query|document)_first"):
            parse_template(order, source="mine.toml")


def test_labels_of_a_likelihood_template_are_refused() -> None:
    with pytest.raises(TemplateError, match=r"readout\.(labels|positive) .*no such key"):
        parse_template(changed('kind = "labels"', 'kind = "likelihood"'), source="mine.toml")


def test_orders_with_different_slots_are_refused() -> None:
    other = GOOD + 'document_first = ["d: {document} q: {query} answer:"]\n'

    with pytest.raises(TemplateError, match="the same slots in every order"):
        parse_template(other, source="mine.toml")
