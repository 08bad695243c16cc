"""``scorer eval``: how well the model ranks, beside BM25."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from scorer.batch import ScoredBatch
    from scorer.model_host import LoadedModel
    from scorer.ranking_report import EvalReport
    from scorer.ranking_sets import RankingSet


_EXTRA = ("bm25s", "ir_measures", "Stemmer")


def _weights(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    del context, parameter
    try:
        weights = tuple(float(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list of numbers parted by commas") from error
    for weight in weights:
        if not 0 <= weight <= 1:
            raise click.BadParameter(f"{weight:g} is not between 0 and 1")
    return weights


@click.command("eval")
@click.argument("set_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--model", metavar="PATH", help="Folder, .gguf file, or name of the model.  [default: the fetched one]")
@click.option("--template", metavar="NAME", help="name, name@version, or a .toml file.  [default: suits the model]")
@click.option("--max-document-tokens", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--depth", type=click.IntRange(min=1), default=50, show_default=True, help="Candidates per query.")
@click.option(
    "--weights",
    callback=_weights,
    default="",
    metavar="W,...",
    help="Shares of the model's score in mixes with BM25 to report on all queries, such as 0.5,0.7.",
)
@click.option("--queries", "num_queries", type=click.IntRange(min=1), help="Take only the first N queries.")
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report here."
)
def command(
    *,
    set_dir: Path,
    model: str | None,
    template: str | None,
    max_document_tokens: int,
    depth: int,
    weights: tuple[float, ...],
    num_queries: int | None,
    json_file: Path | None,
) -> None:
    """Re-rank the candidates of a ranking set and print nDCG@10 and MRR@10 beside BM25's.

    SET_DIR holds docs.jsonl, queries.jsonl, qrels.tsv and bm25_top50.jsonl; docs/ranking-sets.md
    describes them and the measures.
    """
    if missing := [name for name in _EXTRA if find_spec(name) is None]:
        raise click.ClickException(f"{', '.join(missing)} is not installed; pip install 'radix-scorer[eval]' brings it")
    import msgspec

    from engine import EngineError
    from scorer.offline_model import NoModel, offline_model
    from scorer.ranking_report import format_report
    from scorer.ranking_sets import RankingSetError, read_ranking_set

    try:
        ranking_set = read_ranking_set(set_dir)
        with offline_model(os.environ, model=model, template=template) as loaded:
            report = _evaluate(
                ranking_set,
                loaded,
                max_document_tokens=max_document_tokens,
                depth=depth,
                weights=weights,
                num_queries=num_queries,
            )
    except (RankingSetError, NoModel, EngineError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(format_report(report))
    if json_file is not None:
        try:
            json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        except OSError as error:
            raise click.ClickException(f"{json_file} cannot be written: {error.strerror}") from error


def _evaluate(
    ranking_set: RankingSet,
    model: LoadedModel,
    *,
    max_document_tokens: int,
    depth: int,
    weights: tuple[float, ...],
    num_queries: int | None,
) -> EvalReport:
    from tqdm import tqdm

    from scorer.bm25 import bm25_scores
    from scorer.offline import score_now
    from scorer.ranking_eval import evaluate
    from scorer.ranking_report import EvalReport
    from scorer.ranking_run import Tally, first_candidates, score_candidates
    from scorer.token_shares import format_shares

    queries = first_candidates(ranking_set.queries[:num_queries], depth)
    tally = Tally()
    with tqdm(total=sum(len(query.candidates) for query in queries), unit="pair", desc=ranking_set.name) as bar:

        def count(batch: ScoredBatch) -> None:
            tally.add(batch)
            bar.set_postfix_str(format_shares(tally.usage), refresh=False)
            bar.update(len(batch.items))

        started = time.monotonic()
        scores = score_candidates(
            queries,
            ranking_set.documents,
            lambda request: score_now(request, model),
            max_document_tokens=max_document_tokens,
            on_batch=count,
        )
        seconds = time.monotonic() - started
    lexical = bm25_scores(ranking_set)
    info = model.engine.info
    return EvalReport(
        ranking_set=ranking_set.name,
        model=model.name,
        revision=info.revision,
        template=model.prompts.default.template.id,
        dtype=info.dtype,
        kernels=info.kernels,
        num_documents=len(ranking_set.documents),
        depth=depth,
        max_document_tokens=max_document_tokens,
        tally=tally,
        seconds=seconds,
        evaluation=evaluate(
            queries,
            model=scores,
            lexical={query.id: lexical[query.id][:depth] for query in queries},
            weights=weights,
        ),
    )
