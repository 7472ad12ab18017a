"""A key goes only to the service that its variable is named after, and a pool file is read safely."""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from focalroute import ConfigError, Endpoint, Ensemble
from focalroute.core.pool import load_pool, validate_pool
from focalroute.core.services import SERVICES
from tests.paired import assert_cpu_at_most

TOGETHER, DEEPINFRA = "https://api.together.xyz/v1", "https://api.deepinfra.com/v1/openai"


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("TOGETHER_API_KEY", TOGETHER),
        ("TOGETHERAI_API_KEY", "https://api.together.ai/v1"),
        ("DEEPINFRA_TOKEN", DEEPINFRA),
        ("OPENAI_API_KEY_2", "https://api.openai.com/v1"),
        ("AZURE_OPENAI_API_KEY", "https://mine.openai.azure.com/v1"),
        ("OPENAI_API_KEY", "http://localhost:8000/v1"),
        ("OPENAI_API_KEY", "http://10.0.0.7:8000/v1"),
        ("OPENAI_API_KEY", "http://gpu1:8000/v1"),
        ("OPENAI_API_KEY", "http://[::1]:8000/v1"),
        ("OPENAI_API_KEY", "http://llm.internal/v1"),
        ("MY_KEY", TOGETHER),
        ("GATEWAY_KEY", "http://llm.example.org/v1"),
    ],
)
def test_a_key_may_go_to_its_own_service_and_to_own_hosts(variable: str, url: str) -> None:
    endpoint = Endpoint("e", model="m", base_url=url, api_key_env=variable)
    assert validate_pool([endpoint]) == (endpoint,)


@pytest.mark.parametrize(
    ("variable", "url", "why"),
    [
        ("TOGETHER_API_KEY", DEEPINFRA, "TOGETHER_API_KEY is not a key for api.deepinfra.com"),
        ("OPENAI_API_KEY", "https://openrouter.ai/api/v1", "is not a key for openrouter.ai"),
        ("TOGETHER_API_KEY", "https://api.together.xzy/v1", "is not a key for api.together.xzy"),
        ("TOGETHER_API_KEY", "https://api.together.xyz.example.org/v1", "is not a key for"),
        ("TOGETHER_API_KEY", "https://8.8.8.8/v1", "is not a key for 8.8.8.8"),
        ("openai_token", "https://notopenai.com/v1", "is not a key for notopenai.com"),
        ("TOGETHER_API_KEY", "http://api.together.xyz/v1", "unencrypted; use https://"),
        ("MY_KEY", "http://api.openai.com/v1", "unencrypted; use https://"),
    ],
)
def test_a_key_at_another_service_or_in_the_clear_is_refused(variable: str, url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"endpoints: e: .*{re.escape(why)}"):
        validate_pool([Endpoint("e", model="m", base_url=url, api_key_env=variable)])


@pytest.mark.parametrize("name", [name for name, one in SERVICES.items() if one.base_url and one.api_key_env])
def test_the_key_of_a_known_service_goes_to_it_alone_and_encrypted(name: str) -> None:
    own = Endpoint("e", service=name, model="m")
    assert own.base_url is not None
    assert validate_pool([own]) == (own,)
    with pytest.raises(ConfigError, match=f"{own.api_key_env} is not a key for llm.example.org"):
        validate_pool([Endpoint("e", service=name, model="m", base_url="https://llm.example.org/v1")])
    with pytest.raises(ConfigError, match="unencrypted; use https://"):
        validate_pool([Endpoint("e", service=name, model="m", base_url=own.base_url.replace("https", "http"))])


def test_one_variable_goes_to_one_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table that was copied and given another address; hosts of one domain, or of one's own network, may share."""

    def pool(*urls: str) -> list[Endpoint]:
        return [Endpoint(f"e{i}", model="m", base_url=url, api_key_env="MY_KEY") for i, url in enumerate(urls)]

    monkeypatch.setenv("MY_KEY", "x")
    same = pool(TOGETHER, "https://api.together.ai/v1", "http://gpu1:8000/v1", "http://192.168.0.2/v1")
    assert validate_pool(same)
    assert validate_pool(pool("https://eu.example.org/v1", "https://us.example.org/v1"))
    with pytest.raises(ConfigError, match=r"e1: api_key_env: MY_KEY would be sent to api\.together\.xyz and"):
        Ensemble(pool(TOGETHER, DEEPINFRA))
    file = tmp_path / "pool.toml"
    table = '[[endpoint]]\nname = "{}"\nmodel = "m"\nbase_url = "{}"\napi_key_env = "MY_KEY"\n'
    file.write_text(table.format("a", "https://a.example.org/v1") + table.format("b", "https://b.example.com/v1"))
    with pytest.raises(ConfigError, match=rf"{file}: endpoints: b: .*give each service a variable of its own"):
        Ensemble.from_toml(file)


def test_dependencies_are_few_and_bounded() -> None:
    """At most fourteen, each from a version on and below the next one that may break; extras too."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounded = re.compile(r"[a-z0-9-]+(\[[a-z]+\])?>=\d+(\.\d+)*,<\d+(\.\d+)*")
    optional = [requirement for name in extras.keys() - {"dev"} for requirement in extras[name]]
    for requirement in (*project["dependencies"], *optional):
        assert bounded.fullmatch(requirement), requirement
    assert len(project["dependencies"]) <= 14


def test_nothing_in_the_package_can_execute_what_it_reads() -> None:
    """No pickle or its like, no eval, and no array file that is read with pickles allowed."""
    banned = re.compile(r"\b(import|from) (pickle|marshal|shelve|dill|joblib|cloudpickle)|(?<![\w.])(eval|exec)\(")
    package = Path(__file__).parents[2] / "focalroute"
    for file in package.rglob("*.py"):
        text = file.read_text("utf-8")
        assert not banned.search(text), file
        for call in re.findall(r"np\.(?:load|save\w*)\([^\n]*", text):
            assert "allow_pickle=False" in call, f"{file}: {call}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a=" + "[" * 100_000, "nested too deep"),
        ("a=" + "{a=" * 5_000, "nested too deep"),
        ("a." * 30_000 + "b=1", "more than 200 dots"),
        ("[" + "a." * 20_000 + "b]\n" + "x.y=1\n" * 2_000, "more than 200 dots"),
        ("#" * 2**20 + "\n", "larger than 1048576 bytes"),
        ("a=" + "9" * 100_000, "4300 digits"),
    ],
    ids=["lists", "tables", "key", "head", "size", "digits"],
)
def test_a_pool_file_that_would_take_gigabytes_or_minutes_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(text)

    def refuse() -> None:
        with pytest.raises(ConfigError, match=f"not valid TOML: .*{why}"):
            load_pool(path)

    assert_cpu_at_most(15, refuse)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_pool_file_in_another_encoding_is_told_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "pool.toml"
    path.write_text("# café\n", encoding)
    with pytest.raises(ConfigError, match="not valid TOML: it is not UTF-8; save it as that"):
        load_pool(path)


@pytest.mark.parametrize("put_there", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_pool_file_that_is_not_a_regular_file_is_refused_at_once(
    tmp_path: Path, put_there: Callable[[Path], None]
) -> None:
    """A pipe without a writer blocked the caller forever."""
    path = tmp_path / "pool.toml"
    put_there(path)
    with pytest.raises(
        ConfigError, match=f"{path}: cannot be read: not a regular file; give a file that this user may"
    ):
        load_pool(path)


@pytest.mark.parametrize("name", ["a\0.toml", "\ud800.toml"])
def test_a_name_that_no_file_can_have_is_not_said_to_be_bad_toml(name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.toml': not a path: "):
        load_pool(name)


def test_only_a_missing_pool_file_is_answered_with_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.toml"
    with pytest.raises(ConfigError, match=f"{path}: cannot be read: No such file or directory; focalroute init writes"):
        load_pool(path)

    def forbidden(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")  # root may read anything

    monkeypatch.setattr("focalroute.core.pool.read_file", forbidden)
    with pytest.raises(ConfigError, match=f"{path}: cannot be read: Permission denied; give a file that this user may"):
        load_pool(path)


def test_a_pool_file_may_come_from_an_editor_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    text = f'[[endpoint]]\nname = "a"\nmodel = "m"\nbase_url = "{TOGETHER}"\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load_pool(path).endpoints == (Endpoint("a", model="m", base_url=TOGETHER),)
