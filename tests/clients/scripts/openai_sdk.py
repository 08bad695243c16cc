"""The client of OpenAI: decisions, whose probabilities must be those of the native route, and models."""

import json
import urllib.request

import expected
import openai

TOLERANCE = 0.02  # bfloat16: a prompt may be computed in other pieces
YES, NO = ("yes", "Yes"), ("no", "No")
LEVELS = ["not at all", "partly", "fully"]


def check(_variant, base_url, cases):
    client = openai.OpenAI(api_key="none", base_url=f"{base_url}/v1", max_retries=0)
    model = client.models.list().data[0].id
    if client.models.retrieve(model).id != model:
        raise expected.Wrong("the model is not found by its name")
    for case in cases:
        for document in case["documents"][:1]:
            for _ in range(2):  # the second time, both find the same in the cache
                wanted = native(base_url, case["query"], document)
                got = decide(client, model, case["query"], document)
            if any(abs(one - other) > TOLERANCE for one, other in zip(got, wanted, strict=True)):
                raise expected.Wrong(f"{case['query']!r}: the probabilities are {got}, wanted {wanted}")
    check_errors(client, model)


def decide(client, model, query, document):
    """The probabilities of three questions, one after the other."""
    decision = client.decisions.create(
        model=model,
        input=document,
        questions=[
            {"type": "predicate", "name": "fits", "instructions": f"It answers: {query}"},
            {
                "type": "choice",
                "instructions": "What is it?",
                "choices": [
                    {"value": "a finding"},
                    {"value": "a method", "description": "how to do it"},
                    {"value": True},
                ],
            },
            {"type": "score", "instructions": query, "levels": [{"label": level} for level in LEVELS]},
        ],
        prompt_cache_options={"mode": "implicit", "ttl": "30m"},
    )
    fits, kind, grade = decision.answers
    if (fits.type, fits.name, kind.type, grade.type) != ("predicate", "fits", "choice", "score"):
        raise expected.Wrong(f"the answers are {decision.answers}")
    if decision.usage.input_tokens_details.cached_tokens > decision.usage.input_tokens:
        raise expected.Wrong(f"the usage is {decision.usage}")
    return [fits.probability, *(each.probability for each in kind.probabilities), grade.score]


def native(base_url, query, document):
    """The same from the native route, asked in the words that stand in its documentation."""
    letters = "A. a finding\nB. a method: how to do it\nC. true"
    levels = "\n".join(f"{number}. {level}" for number, level in enumerate(LEVELS))
    asked = [
        (f"It answers: {query}\n\nReply with yes or no only.", [*YES, *NO]),
        (f"What is it?\n\n{letters}\n\nReply with the letter of one option only.", ["A", "B", "C"]),
        (f"{query}\n\n{levels}\n\nReply with the number of one level only.", ["0", "1", "2"]),
    ]
    queries = [
        {"text": text, "template": "decision@1", "readout": {"labels": labels, "label_mass": True}}
        for text, labels in asked
    ]
    body = json.dumps({"documents": [document], "queries": queries}).encode()
    request = urllib.request.Request(f"{base_url}/v1/batches/score", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        first, second, third = (each["labels"] for each in json.load(reply)["results"])
    mean = sum(int(label) * share for label, share in third.items())
    return [sum(first[label] for label in YES), *second.values(), mean]


def check_errors(client, model):
    """Errors must arrive as the exceptions that the client has for them."""
    question = {"type": "predicate", "instructions": "It is so."}
    try:
        client.decisions.create(model="no such model", input="text", questions=[question])
        raise expected.Wrong("another model is served")
    except openai.NotFoundError as error:
        if error.code != "model_not_found":
            raise expected.Wrong(f"the code is {error.code}") from error
    try:
        client.decisions.create(model=model, input="text", questions=[])
        raise expected.Wrong("no questions are answered")
    except openai.BadRequestError as error:
        if error.param != "questions":
            raise expected.Wrong(f"the field to blame is {error.param}") from error


expected.run(check)
