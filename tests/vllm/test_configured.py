"""What vLLM's configuration says to our scheduler, and when the plugin has it taken. No vLLM is needed here."""

from types import SimpleNamespace

import pytest

from engine.vllm import plugin
from engine.vllm.configured import (
    ConfigurationError,
    drafter_of,
    hello_of,
    policy_of,
    socket_of,
    warning_of,
)
from policies.settings import LoadSettings, PolicySettings


def _config(*, device="cpu", asynchronous=False, ranks=1, eager=False, method="ngram", **additional):
    return SimpleNamespace(
        additional_config=additional,
        speculative_config=SimpleNamespace(method=method) if method else None,
        scheduler_config=SimpleNamespace(async_scheduling=asynchronous),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        device_config=SimpleNamespace(device_type=device),
        cache_config=SimpleNamespace(block_size=16),
        model_config=SimpleNamespace(
            model="/m",
            dtype="torch.bfloat16",
            quantization=None,
            max_model_len=64,
            enforce_eager=eager,
            hf_config=SimpleNamespace(model_type="llama"),
        ),
    )


def test_the_policy_is_read_from_the_command_line_or_the_environment(monkeypatch):
    assert policy_of(_config()) == PolicySettings()
    asked = {"k_max": 3, "load": {"off_above": 8}}
    assert policy_of(_config(specd_policy=asked)) == PolicySettings(k_max=3, load=LoadSettings(off_above=8))
    monkeypatch.setenv("SPECD_VLLM_POLICY", '{"kind": "static", "static_k": 2}')
    assert policy_of(_config()) == PolicySettings(kind="static", static_k=2)


@pytest.mark.parametrize("wrong", [{"k_max": "many"}, {"kind": "best"}, 3])
def test_a_policy_that_is_none_is_refused_with_where_it_stands(wrong):
    with pytest.raises(ConfigurationError, match="specd_policy is not a policy"):
        policy_of(_config(specd_policy=wrong))


@pytest.mark.parametrize("wrong", [{"kmax": 3}, {"load": {"off": 3}}])
def test_a_key_that_there_is_not_is_named(wrong):
    with pytest.raises(ConfigurationError, match=r"specd_policy has no key (kmax|off)"):
        policy_of(_config(specd_policy=wrong))


def test_the_socket_is_named_by_either(monkeypatch):
    monkeypatch.delenv("SPECD_VLLM_SOCKET", raising=False)
    assert socket_of(_config()) == ""
    monkeypatch.setenv("SPECD_VLLM_SOCKET", "/run/a")
    assert socket_of(_config()) == "/run/a"
    assert socket_of(_config(specd_socket="/run/b")) == "/run/b"


def test_step_lengths_are_those_that_vllm_is_prepared_for():
    table = [0, 4, 4, 2, 2, 1]  # by batch size; the first is of none
    assert drafter_of(_config(), 4, None).lengths == (0, 1, 2, 3, 4)
    assert drafter_of(_config(device="cuda"), 4, None).lengths == (4,)
    assert drafter_of(_config(device="cuda"), 4, table).lengths == (1, 2, 4)
    assert drafter_of(_config(device="cuda", eager=True), 4, table).lengths == (0, 1, 2, 3, 4)
    assert drafter_of(_config(ranks=2), 4, None).lengths == (4,)
    assert drafter_of(_config(method=None), 0, None).most == 0


def test_what_cannot_be_steered_is_said():
    def warning(config, most=4, table=None):
        return warning_of(config, drafter_of(config, most, table))

    assert warning(_config()) is None
    assert warning(_config(device="cuda", method="eagle"), table=[0, 4, 2, 1]) is None
    assert "num_speculative_tokens_per_batch_size" in warning(_config(device="cuda", method="eagle"))
    assert "data parallelism" in warning(_config(ranks=2, method="eagle"))
    assert "nothing to steer" in warning(_config(method=None), most=0)


def test_a_listener_is_told_what_this_engine_is():
    config = _config()
    hello = hello_of(config, drafter_of(config, 4, None), 100)
    assert (hello.model_path, hello.dtype, hello.kv_blocks, hello.proposers) == (
        "/m",
        "bfloat16",
        100,
        ("ngram",),
    )


def test_an_installed_plugin_changes_nothing_until_it_is_asked_to(monkeypatch):
    """Test that it does not even look for vLLM, which is not here."""
    monkeypatch.delenv("SPECD_VLLM_SOCKET", raising=False)
    monkeypatch.delenv("SPECD_VLLM_POLICY", raising=False)
    plugin.register()
    monkeypatch.setenv("SPECD_VLLM_SOCKET", "/run/a")
    with pytest.raises(ModuleNotFoundError, match="vllm"):
        plugin.register()


def test_a_scheduler_that_is_named_is_taken():
    chosen = plugin.chosen(lambda config: config.scheduler_cls)
    assert chosen(SimpleNamespace(scheduler_cls=dict)) is dict
