"""`specd bench` against a small server of the same API."""

import json
import os
import re
import signal
import socket
import threading

import pytest

from specd.bench import plot
from specd.cli.main import main
from tests.daemon.openai_server import OpenAIServer

ALL_KEYS = {"specd", "ignore_eos", "stream_options"}


@pytest.fixture
def server():
    with OpenAIServer().running() as running:
        yield running


@pytest.fixture
def bench(server, tmp_path):
    """Run the command; answers with its exit code, and leaves the JSON result in `bench.result`."""

    def run(*options):
        file = tmp_path / "result.json"
        common = ("--url", server.url, "--max-tokens", "5", "--json", str(file))
        code = main(["bench", *common, *options])
        run.text = file.read_text() if file.exists() else None
        run.result = run.text and json.loads(run.text)
        return code

    return run


def test_measures_every_mix_and_concurrency(bench):
    """Test that each level holds its requests, the server's token counts and the times."""
    assert bench("--concurrency", "1,3", "--mix", "copy,mixed", "--requests", "4") == 0
    levels = bench.result["levels"]
    assert [(level["mix"], level["concurrency"]) for level in levels] == [
        ("copy", 1),
        ("copy", 3),
        ("mixed", 1),
        ("mixed", 3),
    ]
    for level in levels:
        assert (level["requests"], level["errors"], level["tokens"]) == (4, {}, 20)
        assert level["tokens_counted_by"] == "server"
        assert level["tokens_per_second"] == pytest.approx(20 / level["seconds"])
        assert 0 < level["ttft"]["p50"] <= level["ttft"]["p99"]
        assert 0 < level["inter_token"]["p50"] <= level["inter_token"]["p95"] <= level["inter_token"]["p99"]


def test_warm_up_is_not_counted(server, bench):
    """Test that the server saw one request more than were measured."""
    bench("--concurrency", "1", "--requests", "2")
    assert (len(server.bodies), bench.result["levels"][0]["requests"]) == (3, 2)


def test_no_prompt_comes_twice(server, bench):
    """Test that a prefix cache finds nothing: every prompt of a run begins differently."""
    bench("--concurrency", "1,2", "--requests", "20", "--max-tokens", "1")
    beginnings = [body["messages"][0]["content"].split(".")[0] for body in server.bodies]
    assert len(set(beginnings)) == len(beginnings) == 41


def test_speculation_is_reported(server, bench):
    """Test that the classes travel with the requests and the server's reports end up in the result."""
    bench("--concurrency", "1", "--mix", "mixed", "--requests", "3")
    assert [body["specd"]["class"] for body in server.bodies[1:]] == ["copy", "chat", "code"]
    (level,) = bench.result["levels"]
    assert (level["acceptance"], level["tokens_per_round"]) == (3 / 4, 5 / 2)


def test_creative_prompts_are_drawn_at_temperature_1(server, bench):
    """Test that the mix that no draft can guess is sampled, and that the others are greedy."""
    bench("--concurrency", "1", "--mix", "creative,chat", "--requests", "2")
    assert [body["temperature"] for body in server.bodies[1:]] == [1, 1, 0, 0]
    assert server.bodies[1]["specd"]["class"] == "creative"


def test_a_ramp_moves_from_one_mix_to_the_other(server, bench, tmp_path, capsys):
    """Test that each phase has its clients, its share of both mixes and its line, and that the whole is summed up."""
    plot = tmp_path / "ramp.png"
    assert bench("--ramp", "1,3,1", "--requests", "4", "--plot", str(plot)) == 0
    assert [(level["concurrency"], level["mix"], level["requests"]) for level in bench.result["levels"]] == [
        (1, "chat", 4),
        (3, "50% chat, 50% copy", 4),
        (1, "copy", 4),
    ]
    classes = [body["specd"]["class"] for body in server.bodies[1:]]
    assert [sorted(classes[at : at + 4]).count("copy") for at in (0, 4, 8)] == [0, 2, 4]
    assert bench.result["ramp"]["tokens"] == 60
    assert bench.result["ramp"]["seconds"] == pytest.approx(
        sum(level["seconds"] for level in bench.result["levels"])
    )
    assert bench.result["command"].startswith("specd bench --ramp 1,3,1 --mix chat,copy")
    out = capsys.readouterr()
    assert "the whole ramp:" in out.out
    assert "12/12" in out.err
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_a_ramp_has_two_ends(bench, capsys):
    """Test that a ramp over three mixes is refused before anything is asked."""
    assert bench("--ramp", "1,2", "--mix", "copy,chat,code") == 2
    assert "name two with --mix, not 3" in refusal(capsys)


@pytest.mark.parametrize(
    ("taken", "counted_by"),
    [
        (ALL_KEYS, "server"),
        ({"ignore_eos", "stream_options"}, "server"),
        ({"stream_options"}, "server"),
        (set(), "arrivals"),
    ],
    ids=["specd", "vllm", "openai", "bare"],
)
def test_falls_back_to_what_the_server_takes(server, bench, taken, counted_by):
    """Test that a server which refuses keys is measured without them, and tokens are counted anyway."""
    server.extra_keys = taken
    assert bench("--concurrency", "1", "--requests", "2") == 0
    (level,) = bench.result["levels"]
    assert (level["tokens"], level["tokens_counted_by"]) == (10, counted_by)
    assert all(body.keys() & ALL_KEYS == taken for body in server.bodies)
    assert (level["acceptance"] is None) == ("specd" not in taken)


def test_result_tells_the_command_but_not_the_machine(server, bench, tmp_path):
    """Test that a result can be passed on: what was asked and on what, but no host name and no path."""
    bench("--concurrency", "1,2", "--requests", "2", "--seed", "7")
    assert bench.result["command"] == (
        "specd bench --concurrency 1,2 --mix mixed --requests 2 --max-tokens 5 --seed 7"
    )
    assert bench.result["environment"]["cores"] == os.cpu_count()
    assert bench.result["server"]["model"] == "tiny"
    for secret in (server.url, "127.0.0.1", str(tmp_path), "/srv/models", socket.gethostname()):
        assert secret not in bench.text


def test_prints_a_table(bench, capsys):
    """Test that the numbers are on stdout, one line a level, and the progress is not."""
    bench("--concurrency", "2", "--mix", "chat", "--requests", "4")
    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if "chat" in line]
    mix, clients, requests, errors, *_, acceptance, per_round = re.findall(r"[\w.-]+", line)
    assert (mix, clients, requests, errors, acceptance, per_round) == ("chat", "2", "4", "0", "0.75", "2.50")
    assert "4/4" in captured.err


def test_some_failures_are_counted(server, bench, capsys):
    """Test that a failed request is an error with its reason, and its tokens count for nothing."""
    server.fail_when = lambda number: number == 2
    assert bench("--concurrency", "1", "--requests", "3") == 0
    (level,) = bench.result["levels"]
    assert (level["requests"], level["errors"], level["tokens"]) == (3, {"The engine died": 1}, 10)
    assert "mixed, 1 clients: 1 failed: The engine died" in capsys.readouterr().err


def test_nothing_but_failures_is_said(server, bench, capsys):
    """Test that a level without one success ends with exit code 2 and a sentence, after the table."""
    server.fail_when = lambda number: number > 0
    assert bench("--concurrency", "1", "--requests", "2") == 2
    assert "Not one request succeeded at mixed with 1 clients" in capsys.readouterr().err
    assert bench.result["levels"][0]["ttft"] is None


@pytest.fixture
def heard_ctrl_c():
    """SIGINT as Python has it, also where this process was started with the signal ignored, as shells do behind `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_interrupt_prints_what_was_measured(server, bench, capsys):
    """Test that Ctrl-C in the third request leaves the table and the JSON of the first two."""
    server.hang_when = lambda number: number == 3

    def interrupt():
        server.hanging.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    ctrl_c = threading.Thread(target=interrupt)
    ctrl_c.start()
    assert bench("--concurrency", "1,2", "--requests", "5", "--mix", "code") == 130
    ctrl_c.join()
    assert bench.result["interrupted"]
    assert [(level["requests"], level["tokens"]) for level in bench.result["levels"]] == [(2, 10)]
    assert "code" in capsys.readouterr().out


def refusal(capsys):
    """What stands on stderr besides the progress bar, which must be one line."""
    err = capsys.readouterr().err
    lines = [
        line for line in err.splitlines() if line.strip() and not re.search(r"\d/\d+ \d:\d\d:\d\d", line)
    ]
    assert len(lines) == 1, lines
    return lines[0]


def test_no_server(capsys):
    """Test that an address at which nobody listens is refused with a sentence."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert main(["bench", "--url", url]) == 2
    assert refusal(capsys).startswith(f"No server answers at {url}/v1/: ")


def test_api_key(server, bench, tmp_path, capsys):
    """Test that the key comes from its file, and that the server's refusal is passed on."""
    server.key = "right"
    key = tmp_path / "key"
    key.write_text("right\n")
    assert bench("--concurrency", "1", "--requests", "1", "--api-key-file", str(key)) == 0
    capsys.readouterr()
    assert bench("--concurrency", "1") == 2
    assert "does not list its models: HTTP 401: This key is unknown." in refusal(capsys)


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("\n", "is empty"), (b"\xff", "can't decode")]
)
def test_useless_key_file(content, said, bench, tmp_path, capsys):
    """Test that a key file that is missing, empty or no text is refused before anything is asked."""
    key = tmp_path / "key"
    if content is not None:
        key.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert bench("--api-key-file", str(key)) == 2
    assert said in refusal(capsys)


def test_model_that_is_not_listed(server, bench, capsys):
    """Test that a server without a model is refused, unless the model is named."""
    server.models = ()
    assert bench("--concurrency", "1") == 2
    assert "lists no model" in refusal(capsys)
    assert bench("--concurrency", "1", "--requests", "1", "--model", "other") == 0
    assert {body["model"] for body in server.bodies} == {"other"}


def test_refused_body_is_told(server, bench, capsys):
    """Test that a server that takes no body we know of is refused with its own words."""
    server.extra_keys = {"specd"}
    server.common_keys = set()
    assert bench("--concurrency", "1") == 2
    assert "refuses the warm-up request: HTTP 400: unknown" in refusal(capsys)


def test_plot(bench, tmp_path):
    """Test that --plot writes a PNG."""
    file = tmp_path / "result.png"
    assert bench("--concurrency", "1,2", "--requests", "2", "--plot", str(file)) == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib(server, bench, tmp_path, monkeypatch, capsys):
    """Test that a missing extra is said before anything is measured."""
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert bench("--plot", str(tmp_path / "result.png")) == 2
    assert "pip install 'specd-llm[plot]'" in refusal(capsys)
    assert server.bodies == []


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("name", ["missing/result.png", "."])
def test_result_with_nowhere_to_go(option, name, tmp_path, capsys):
    """Test that an unwritable result is refused before the server is even asked."""
    assert main(["bench", "--url", "http://127.0.0.1:1", option, str(tmp_path / name)]) == 2
    assert "cannot be written" in refusal(capsys)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--concurrency", "1,0"], "'0' is not a whole number of at least 1"),
        (["--concurrency", "few"], "'few' is not a whole number"),
        (["--mix", "copy,prose"], "'prose' is not a mix: there are copy, chat, code, creative, mixed"),
        (["--ramp", "1,2", "--concurrency", "4"], "not allowed with argument"),
        (["--requests", "-1"], "'-1' is not a whole number"),
        (["--url", "localhost:8000"], "'localhost:8000' is not an address such as http://127.0.0.1:8000"),
        (["--url", "http://host:port"], "is not a URL"),
    ],
)
def test_useless_options(options, said, capsys):
    """Test that a mistyped option is named, with what would be right."""
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *options])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
