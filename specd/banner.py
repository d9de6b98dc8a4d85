"""What the daemon says to whoever started it by hand."""

import json
import shlex

from specd.serving import ServedModel


def example(url: str, model: ServedModel, *, keyed: bool) -> str:
    """A command to try the daemon at this URL with; `keyed` when it asks for a bearer key."""
    chat = model.encoder.template is not None
    question = (
        {"messages": [{"role": "user", "content": "Say hello."}]} if chat else {"prompt": "Once upon a time"}
    )
    body = json.dumps({"model": model.info.name, **question, "max_tokens": 64, "temperature": 0})
    path = "chat/completions" if chat else "completions"
    key = ' -H "Authorization: Bearer $KEY"' if keyed else ""
    return f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"
