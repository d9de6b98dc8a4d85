"""Requests as prompts to train a head on."""

from typing import Any

from specd.http.bodies import ChatBody, CompletionBody, Generation


def as_prompt(body: Generation) -> dict[str, Any] | None:
    """As `specd draft train` reads it; None for what it cannot: tokens, tools, texts that are to be gone on with."""
    match body:
        case CompletionBody(prompt=str(prompt)) if prompt:
            return {"prompt": prompt, "temperature": body.temperature}
        case ChatBody() if not body.tools and not body.continue_final_message:
            messages = [message.as_template_input() for message in body.messages]
            if all(_plain(message) for message in messages):
                return {"messages": messages, "temperature": body.temperature}
    return None


def _plain(message: dict[str, Any]) -> bool:
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)
