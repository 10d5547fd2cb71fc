"""Chat templates: what real ones use works; what hostile ones try is stopped, fast and by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from kernelgen_runtime.errors import TextError
from kernelgen_runtime.text.chat_template import ChatTemplate
from kernelgen_runtime.text.settings import (
    GenerationDefaults,
    read_chat_template,
    read_generation_defaults,
)

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hi & <b>"}]


def render(source: str, messages: Any = USER, **more: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}, "here").render(messages, **more)


@pytest.mark.row("B-11")
def test_chatml() -> None:
    assert render(CHATML) == (
        "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\nHi & <b><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert not render(CHATML, add_generation_prompt=False).endswith("assistant\n")


@pytest.mark.row("B-11")
@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("{{ bos_token }}{{ messages[0].content | trim }}", "<s>Hi & <b>"),
        ("{% if x is not defined %}no{% endif %}", "no"),
        ("{%- set ns = namespace(a=1) -%}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "2"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% for m in messages[::-1] %}{{ m.role }}{% break %}{% endfor %}", "user"),
        ("{% macro f(x) %}[{{ x }}]{% endmacro %}{{ f('a') ~ 1 ~ f(2) }}", "[a]1[2]"),
        ("{{ 'a|b'.split('|')[-1] }}{{ 'x'.startswith('x') }}{{ 7 % 2 }}", "bTrue1"),
        (
            "{{ 'aa' | replace('a', 'b') }}{{ [1, 2] | join('-') }}{{ '{} {}'.format(1, 2) }}",
            "bb1-21 2",
        ),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% generation %}", None),
        ("{{ raise_exception('roles must alternate') }}", None),
    ],
)
def test_what_templates_use(source: str, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(TextError, match=r"^here: chat template: "):
            render(source)
    else:
        assert render(source) == wanted


def test_the_date_is_there() -> None:
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['__builtins__'] }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ [0] * 1000000000 }}",
        "{{ 2 ** 1000000000 }}",
        "{{ 'x'.center(10 ** 9) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x\n' | indent(1000000000, true) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 999999999) }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}"
        "{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ range(99999) | map('string') | join('a' * 10000) }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
        "{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{{ range(99999) | join('a' * 10000) }}",
        "{% for i in range(100000) %}{{ 'a' * 10000 }}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
        "{{ 'a' | xmlattr }}",
        "{{ (1, 2",
        "{{ messages.append(1) }}",
    ],
)
def test_hostile_templates_are_stopped(source: str) -> None:
    start = time.perf_counter()
    with pytest.raises(TextError, match=r"^here: chat template: ") as caught:
        render(source)
    assert len(str(caught.value)) < 300
    assert time.perf_counter() - start < 2


def test_endless_work_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelgen_runtime.text.chat_template.MAX_SECONDS", 0.2)
    loops = "{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4
    start = time.perf_counter()
    with pytest.raises(TextError, match="runs too long"):
        render(loops)
    assert time.perf_counter() - start < 2


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        name = name.replace("__", ".")
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.row("B-11")
def test_where_templates_come_from(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    config = {"bos_token": {"content": "<B>"}, "chat_template": "config{{ bos_token }}"}
    write(tmp_path, tokenizer_config__json=config)
    template = read_chat_template(tmp_path)
    assert template is not None and template.render(USER) == "config<B>"
    named = [{"name": "tool", "template": "no"}, {"name": "default", "template": "named"}]
    write(tmp_path, tokenizer_config__json={"chat_template": named})
    template = read_chat_template(tmp_path)
    assert template is not None and template.render(USER) == "named"
    write(tmp_path, chat_template__json={"chat_template": "alone"})
    template = read_chat_template(tmp_path)
    assert template is not None and template.render(USER) == "alone"
    write(tmp_path, chat_template__jinja="file")
    template = read_chat_template(tmp_path)
    assert template is not None and template.render(USER) == "file"


@pytest.mark.row("B-11")
@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, GenerationDefaults()),
        ({"eos_token_id": 2, "temperature": 0.6}, GenerationDefaults((2,))),
        (
            {
                "eos_token_id": [5, 6],
                "do_sample": True,
                "temperature": 0.6,
                "top_k": 20,
                "top_p": 0.95,
            },
            GenerationDefaults((5, 6), 0.6, 20, 0.95),
        ),
        ({"do_sample": True}, GenerationDefaults(None, 1.0, 0, 1.0)),
        ({"do_sample": False, "top_p": 0.5}, GenerationDefaults()),
        ({"do_sample": True, "top_p": 0}, None),
        ({"do_sample": True, "temperature": "hot"}, None),
    ],
)
def test_generation_defaults(
    tmp_path: Path, values: Any, wanted: GenerationDefaults | None
) -> None:
    write(tmp_path, generation_config__json=values)
    if wanted is None:
        with pytest.raises(TextError, match=r"generation_config\.json"):
            read_generation_defaults(tmp_path)
    else:
        assert read_generation_defaults(tmp_path) == wanted
