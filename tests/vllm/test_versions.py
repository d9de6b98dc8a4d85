"""A vLLM that is not known is refused by a sentence, before it serves anything."""

from engine.vllm.versions import PINNED, unsupported_interface, unsupported_version


class _Output:
    num_scheduled_tokens: dict
    total_num_scheduled_tokens: int
    scheduled_spec_decode_tokens: dict
    finished_req_ids: set
    num_invalid_spec_tokens: dict
    num_spec_tokens_to_schedule: int


class _Runner:
    req_id_to_index: dict
    sampled_token_ids: list


class _Request:
    def __init__(self):
        self.request_id = self.max_tokens = self.num_computed_tokens = self.spec_token_ids = None
        self.sampling_params = self.is_prefill_chunk = self.num_prompt_tokens = None

    @property
    def num_tokens(self):
        return 0

    @property
    def num_output_tokens(self):
        return 0


class _Scheduler:
    def __init__(self):
        self.running = self.waiting = self.requests = self.num_spec_tokens = self.max_model_len = None
        self.max_num_scheduled_tokens = self.max_num_running_reqs = self.dynamic_sd_lookup = None
        self.vllm_config = self.kv_cache_config = None

    def schedule(self, throttle_prefills=False): ...
    def update_from_output(self, scheduler_output, model_runner_output): ...
    def _update_after_schedule(self, scheduler_output): ...
    def get_request_counts(self): ...
    def get_kv_cache_usage(self): ...
    def shutdown(self): ...


def test_pinned_versions_are_taken_and_others_are_refused_with_what_to_install():
    assert unsupported_version(PINNED[0]) is None
    assert "install vllm==" in unsupported_version("0.99.0")
    assert "make vllm-env" in unsupported_version(None)


def test_an_interface_as_it_was_is_taken():
    assert unsupported_interface(_Scheduler, _Output, _Runner, _Request) is None


def test_another_signature_and_a_name_that_has_gone_are_each_named():
    class Changed(_Scheduler):
        def schedule(self, budget): ...

    class Less:
        req_id_to_index: dict

    fault = unsupported_interface(Changed, _Output, Less, _Request)
    assert "Changed.schedule takes (self, budget)" in fault
    assert "Less.sampled_token_ids is gone" in fault
