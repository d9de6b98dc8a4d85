"""What a text is to conform to: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from engine.api import Grammar
from specd.http.fields import Body, SchemaText, fault

_Choices = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
_Text = Annotated[str, Field(min_length=1)]


class JsonSchema(Body):
    """`response_format.json_schema`. Answers conform with `strict` or without."""

    name: str = Field("schema", pattern=r"^[A-Za-z0-9_-]+$", max_length=64)
    description: str | None = None
    schema_text: SchemaText = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way to ask for a structure."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema_if_said(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise fault("json_schema", "is missing: type json_schema needs an object with the schema")
        if self.type != "json_schema" and self.json_schema is not None:
            raise fault("json_schema", f"goes with type json_schema, not {self.type}: change one of them")
        return self

    @property
    def grammar(self) -> Grammar | None:
        """None for free text."""
        if self.json_schema is not None:
            return Grammar("json_schema", self.json_schema.schema_text)
        return Grammar("json_object") if self.type == "json_object" else None


class StructuredOutputs(Body):
    """vLLM's way; one of these."""

    json_text: SchemaText | None = Field(None, alias="json")
    regex: _Text | None = None
    choice: _Choices | None = None
    grammar: _Text | None = None
    json_object: bool | None = None

    def grammars(self) -> Iterator[tuple[str, Grammar]]:
        """Each that is asked for, by the name of its key."""
        if self.json_text is not None:
            yield "json", Grammar("json_schema", self.json_text)
        if self.regex is not None:
            yield "regex", Grammar("regex", self.regex)
        if self.choice is not None:
            yield "choice", Grammar("choice", json.dumps(self.choice))
        if self.grammar is not None:
            yield "grammar", Grammar("lark", self.grammar)
        if self.json_object:
            yield "json_object", Grammar("json_object")


class Structured(Body):
    """The parameters of both endpoints that ask for a structure."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaText | None = None
    guided_regex: _Text | None = None
    guided_choice: _Choices | None = None
    guided_grammar: _Text | None = None

    @property
    def grammar(self) -> Grammar | None:
        """What is asked for, if anything is."""
        return next((grammar for _, grammar in self._grammars()), None)

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        names = [name for name, _ in self._grammars()]
        if len(names) > 1:
            raise fault(
                names[1], f"and {names[0]} contradict each other: a text can have one structure, drop one"
            )
        return self

    def _grammars(self) -> Iterator[tuple[str, Grammar]]:
        if self.response_format is not None and (grammar := self.response_format.grammar):
            yield "response_format", grammar
        if self.structured_outputs is not None:
            for name, grammar in self.structured_outputs.grammars():
                yield f"structured_outputs.{name}", grammar
        old = StructuredOutputs.model_construct(
            json_text=self.guided_json,
            regex=self.guided_regex,
            choice=self.guided_choice,
            grammar=self.guided_grammar,
        )
        for name, grammar in old.grammars():
            yield f"guided_{name}", grammar
