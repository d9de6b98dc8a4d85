"""How many rows of prompts a step takes: all it may when nobody decodes, few when others would have to wait."""

from tests.engine.conftest import MakeEngine, request

PROMPT = [5, 6, 7, 8] * 100


def prefill_rows(make_engine: MakeEngine, *, decoding: bool, **launch: int) -> list[int]:
    """Of each step until a prompt of 400 tokens is computed, with another text decoding beside it or not."""
    engine = make_engine("none", max_batch_tokens=128, prefix_cache=False, **launch)
    if decoding:
        engine.submit(request("running", [3], max_tokens=400))
        engine.step()
    engine.submit(request("long", PROMPT, max_tokens=1))
    rows = []
    for _ in range(len(PROMPT)):
        rows.append(engine.step().prefill_rows)
        if sum(rows) == len(PROMPT):
            break
    engine.cancel("running")
    while engine.has_work:
        engine.step()
    return rows


def test_a_prompt_alone_takes_whole_steps(make_engine: MakeEngine) -> None:
    assert prefill_rows(make_engine, decoding=False, rows_beside_decodes=32) == [128, 128, 128, 16]


def test_beside_decodes_it_takes_few_rows_and_fewer_the_longer_its_context(make_engine: MakeEngine) -> None:
    rows = prefill_rows(make_engine, decoding=True, rows_beside_decodes=32)
    assert rows[0] == 32
    assert rows[:-1] == sorted(rows[:-1], reverse=True)
    assert 20 <= rows[-2] < 28


def test_without_a_limit_it_does_not_care_who_decodes(make_engine: MakeEngine) -> None:
    assert prefill_rows(make_engine, decoding=True, rows_beside_decodes=0) == [127, 127, 127, 19]


def test_a_prompt_always_moves_on(make_engine: MakeEngine) -> None:
    assert prefill_rows(make_engine, decoding=True, rows_beside_decodes=1)[:300] == [1] * 300
