"""What `specd top` shows, and the tokens per second that it is made of."""

from msgspec import structs

from engine.api import KVUsage, PhaseSeconds, Round, StepReport
from policies.base import LoadState
from specd.cli.top_screen import screen
from specd.observers import Ledger


def a_step(ks, *, committed, seconds, prefill_rows=0):
    """One request for each k; a draft is half accepted."""
    rounds = [
        Round(f"r{i}", "chat", "ngram" if k else "none", k, k, min(k, k // 2 + 1), k // 2, "static", "why")
        for i, k in enumerate(ks)
    ]
    return StepReport(
        step=1,
        phases=PhaseSeconds(schedule=0.0, draft=0.0, verify=seconds, commit=0.0),
        rows=sum(ks) + len(ks),
        prefill_rows=prefill_rows,
        running=len(ks),
        waiting=0,
        committed=committed,
        kv=KVUsage(free=75, used=20, cached=5),
        load_state=LoadState.SHRUNK,
        rounds=rounds,
        outputs=[],
    )


def test_goodput_is_told_apart_by_load_and_by_drafting():
    """Test that steps count under their number of requests, with drafts or without, and prompts under neither."""
    ledger = Ledger()
    for _ in range(3):
        ledger.step(a_step([4, 0, 0], committed=6, seconds=0.02))
        ledger.step(a_step([0, 0, 0], committed=3, seconds=0.015))
        ledger.step(a_step([0], committed=1, seconds=0.01))
        ledger.step(a_step([4, 4, 4], committed=3, seconds=1.0, prefill_rows=32))
    assert ledger.goodput.snapshot() == [
        {"running": "1", "drafting": None, "plain": 100.0},
        {"running": "3 to 4", "drafting": 300.0, "plain": 200.0},
    ]


def test_old_steps_fade():
    """Test that what drafting gives now outweighs what it gave 2,000 steps ago, and that 65 and 200 are one."""
    ledger = Ledger()
    for count, tokens in ((65, 100), (200, 300)):
        for _ in range(2000):
            ledger.goodput.add(a_step([1] * count, committed=tokens, seconds=1.0))
    (arm,) = ledger.goodput.snapshot()
    assert arm["running"] == "65 and more"
    assert 299 < arm["drafting"] < 300


def test_the_ledger_counts_the_lengths_of_what_it_remembers():
    """Test that the lengths are those of the last 500 rounds, by who drafted, and tokens those of the last seconds."""
    ledger = Ledger(clock=lambda: 5.0)
    ledger.step(a_step([8] * 100, committed=100, seconds=1.0))
    for _ in range(5):
        ledger.step(a_step([2] * 25 + [0] * 75, committed=100, seconds=1.0))
    assert ledger.lengths() == {"ngram": {2: 125}, "none": {0: 375}}
    assert ledger.tokens_per_second() == 60.0
    assert ledger.acceptance_by_proposer()["chat"]["ngram"] < 1


def test_a_decision_has_its_alternatives():
    """Test that what the policy told of a round's decision is listed, and nothing is made up where it told nothing."""
    ledger, step = Ledger(), a_step([3, 0], committed=3, seconds=0.1)
    step.rounds[0] = structs.replace(
        step.rounds[0], goodput=212.34, alternatives=(("eagle", 2, 210.06), ("none", 0, 154.0))
    )
    ledger.step(step)
    untold, told = ledger.decisions(2)
    assert (untold["goodput"], untold["alternatives"]) == (None, [])
    assert told["goodput"] == 212.3
    assert told["alternatives"] == [
        {"proposer": "eagle", "k": 2, "goodput": 210.1},
        {"proposer": "none", "k": 0, "goodput": 154.0},
    ]


def a_status(**other):
    """Of a daemon at work, but for `other`."""
    return {
        "version": "1",
        "uptime_seconds": 3723.4,
        "unready_because": None,
        "engine": {"state": "ready", "restarts": 1, "last_death": "killed: SIGKILL"},
        "model": {"name": "demo", "target_revision": "t1", "draft_revision": None},
        "load": {"state": "shrunk", "running": 3, "waiting": 1, "admitted": 4},
        "kv": {"free": 75, "used": 20, "cached": 5},
        "acceptance": {"chat": 0.5, "code": None},
        "alerts": {"pending": 0, "firing": 1},
        "drafts": {
            "tokens_per_second": 181.25,
            "acceptance": {"chat": {"ngram": 0.75, "eagle": 0.4}, "code": {}},
            "k": {"none": {"0": 6}, "ngram": {"8": 1}, "eagle": {"2": 3}},
            "reasons": {"acceptance": 2, "load_cap": 8},
            "goodput": [{"running": "1", "drafting": 120.5, "plain": None}],
        },
        "drift": [a_stratum("code", 0.5, 0.4, score=0.125), a_stratum("chat", 0.61, 0.4, wrong=["step"])],
        "mqtt": {"broker": None, "node": None, "connected": False, "denied_topics": [], "trouble": None},
        "config": {
            "hash": "cafe",
            "pending_restart": [],
            "last_reload": {"trigger": "SIGHUP", "unix_time": 0.0, "result": "ok", "error": None},
        },
    } | other


def a_stratum(name, baseline, now, *, score=None, wrong=()):
    of = {"traffic_class": name, "temperature": "greedy", "proposer": "ngram", "by_chance": False}
    return of | {"requests": 40, "baseline": baseline, "now": now, "score": score, "wrong": wrong}


def test_a_screen():
    """Test that every part of the screen is there, in lines that can be read in a log as well."""
    decisions = [
        {
            "request": "r-1",
            "class": "chat",
            "proposer": "eagle",
            "k": 2,
            "text": "eagle at 0.40: k = 2 brings 1.31",
        },
        {"request": "r-2", "class": "code", "proposer": "none", "k": 0, "text": "load off: 13 running > 12"},
    ]
    assert [line.plain for line in screen(a_status(), decisions)] == [
        "specd 1   demo   up 1:02:03",
        "serving",
        "target t1   draft -",
        "running 3   waiting 1   load shrunk   KV 20% used   181.2 tokens/s",
        "alerts 1 firing, 0 pending",
        "",
        "k of the last 10 rounds",
        "   0  ████████████████████████████████  60%",
        "   2  ████████████████                  30%",
        "   8  █████                             10%",
        "drafted by: eagle 30%, ngram 10%",
        "",
        "against baseline  by     sampling   now  before  requests  evidence",
        "chat              ngram  greedy    0.40    0.61        40      step",
        "code              ngram  greedy    0.40    0.50        40       12%",
        "",
        "the last decisions",
        "  r-1 (chat): k = 2 by eagle; eagle at 0.40: k = 2 brings 1.31",
        "  r-2 (code): k = 0; load off: 13 running > 12",
        "",
        "tokens/s of steps, by requests that decode   drafting   plain",
        "1                                               120.5       -",
        "",
        "acceptance    all   eagle   ngram",
        "chat         0.50    0.40    0.75",
        "code            -       -       -",
    ]


def test_a_screen_before_anything_ran():
    """Test that a daemon that still loads has a screen that says so."""
    status = a_status(
        unready_because="the engine is loading",
        kv=None,
        acceptance={},
        alerts={"pending": 0, "firing": 0},
        drift=[],
        drafts={"tokens_per_second": 0.0, "acceptance": {}, "k": {}, "goodput": []},
    )
    lines = [line.plain for line in screen(status, [])]
    assert "the engine is loading" in lines
    assert "no rounds yet" in lines
    assert "alerts none" in lines
