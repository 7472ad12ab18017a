"""Every reader of foreign data, as a function of bytes that may raise only typed errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focalroute.answers import KINDS, normal_form
from focalroute.answers.structured import structure_of
from focalroute.answers.tool_calls import calls_text
from focalroute.core.config import Endpoint
from focalroute.core.errors import CallFailed, ConfigError, PolicyError, StoreError
from focalroute.core.pool import load_pool
from focalroute.core.records import Query
from focalroute.endpoints import capabilities
from focalroute.endpoints.breaker import Breakers
from focalroute.endpoints.capabilities import Capabilities
from focalroute.endpoints.client import EndpointClient, HttpSessions
from focalroute.endpoints.elicit import plan
from focalroute.endpoints.elicit.closed import choice_parser
from focalroute.endpoints.rate_limits import Throttle, pause_of
from focalroute.endpoints.wire import Completion, Request, decode_bytes, parse_json
from focalroute.endpoints.wire.fields import stated_cost
from focalroute.endpoints.wire.refusals import refusal_of
from focalroute.endpoints.wire.stream import StreamDecoder
from focalroute.evaluate.outcomes import read_log
from focalroute.learn.offline.checkpoint import Checkpoint
from focalroute.money.prices import read_listing
from focalroute.policy.bundle import digest, load_folder
from focalroute.policy.onnx_model import Graph
from focalroute.store.base import BalanceDifference, HealthRow
from focalroute.store.codec import read_answer
from focalroute.store.sqlite.store import SqliteStore
from tests.fuzzing import callers, seeds
from tests.fuzzing.mutating import mutated, mutated_json
from tests.store.made import bill
from tests.store.test_checksums import content

__all__ = ["TARGETS", "Target", "readable"]

MESSAGES = ({"role": "user", "content": "Which?"},)
CLOSED = Query("q", MESSAGES, ("Jupiter", "Saturn", "Mars"))
ABLE = [Capabilities(logprobs, 5, n, False, True) for logprobs, n in ((True, False), (False, True), (False, False))]
STRUCTURE = structure_of(
    {"properties": {"answer": {"enum": ["A", "B"]}, "n": {"type": "number"}}, "required": ["answer"]}
)
PLANS = [plan(CLOSED, able) for able in ABLE]
PLANS += [plan(Query("q", MESSAGES, answer=kind), ABLE[0]) for kind in (*KINDS, STRUCTURE)]

Make = Callable[[random.Random], bytes]
Read = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One reader.

    Attributes:
        inputs: how many of a million are for it.
        make: the next input.
        open: gives what reads an input, while the context lasts; anything that it raises is a defect.
    """

    name: str
    inputs: int
    make: Make
    open: Callable[[], Any]


def readable(completion: Completion) -> None:
    """A completion is read in every way, or is a typed failure."""
    for one in PLANS:
        with suppress(CallFailed):
            reading = one.read(completion)
            assert reading.text.encode() is not None
            assert calls_text(reading.tool_calls).encode() is not None
            if reading.probabilities is not None:
                assert all(0 <= p <= 1 for p in reading.probabilities)
                assert sum(reading.probabilities) <= 1 + 1e-9


def reply(data: bytes) -> None:
    with suppress(CallFailed):
        readable(decode_bytes(data))


def stream(data: bytes) -> None:
    """In pieces that the input itself decides on."""
    decoder = StreamDecoder()
    sizes = random.Random(len(data)).choices((1, 7, 64, 4096), k=3)
    with suppress(CallFailed):
        at = turn = 0
        while at < len(data):
            assert decoder.feed(data[at : at + sizes[turn % 3]]) is not None
            at, turn = at + sizes[turn % 3], turn + 1
        readable(decoder.finish())


def text(data: bytes) -> None:
    said = data.decode("utf-8", "replace")
    found = choice_parser(("Jupiter", "Saturn", "Mars", "3.5")).find(said)
    assert found is None or said[found.start : found.end]
    for kind in (*KINDS, STRUCTURE):
        form = normal_form(said, kind)
        assert form is None or normal_form(form, kind) == form


def headers(data: bytes) -> None:
    said = data.decode("latin-1")
    for named in ({"Retry-After": said}, {"retry-after-ms": said}):
        failure = refusal_of(429, named, {"error": {"code": said}}, ("secret",))
        assert failure.retry_after_s is None or 0 <= failure.retry_after_s < float("inf")


def limits(data: bytes) -> None:
    """Raw response headers, one a line."""
    said = [(name, value) for name, _, value in (line.partition(b":") for line in data.split(b"\n"))]
    assert 0 <= pause_of(said, now=1_700_000_000) < float("inf")
    throttle = Throttle(Endpoint("e", model="m", base_url="http://localhost:1/v1"))
    throttle.on_headers(said)
    assert 0 <= throttle.paused_s <= 60


def listing(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        payload = json.loads(data)
        for dialect in ("together", "deepinfra", "openrouter"):
            assert all(price.prompt >= 0 for price in read_listing(payload, dialect).values())


def lookup(data: bytes) -> None:
    with suppress(CallFailed):
        cost = stated_cost(parse_json(data))
        assert cost is None or 0 <= cost <= 200_000


def remembered(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        values = json.loads(data)
        able = capabilities.override(Endpoint("e", model="m"), Capabilities.from_dict(values))
        plan(CLOSED, able)


def trajectory(data: bytes) -> None:
    with suppress(StoreError):
        read_answer(("x", 1.5, '[["k"], "short", 0, [1.0], {}]', data, "{}", None))


def record(data: bytes) -> None:
    with suppress(StoreError):
        read_answer(("x", 1.5, data.decode("utf-8", "replace"), None, "{}", None))


def model(data: bytes) -> None:
    with suppress(PolicyError):
        Graph(data)


@contextmanager
def at_path(name: str, read: Callable[[Path], Any], error: type[Exception]) -> Iterator[Read]:
    """What reads a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name

        def from_file(data: bytes) -> None:
            path.write_bytes(data)
            with suppress(error):
                read(path)

        yield from_file


@contextmanager
def in_bundle() -> Iterator[Read]:
    """A bundle with one of its files replaced; every other time with hashes that fit, as an attacker has them."""
    with tempfile.TemporaryDirectory() as root:
        folder = seeds.bundle(Path(root))
        sound = {file.name: file.read_bytes() for file in folder.iterdir()}

        def read(data: bytes) -> None:
            which, forged, content = data[0] % len(sound), data[0] & 64, data[1:]
            name = sorted(sound)[which]
            (folder / name).write_bytes(content)
            if forged and name != "manifest.json":
                manifest = json.loads(sound["manifest.json"])
                manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
                manifest["digest"] = digest(manifest)
                (folder / "manifest.json").write_text(json.dumps(manifest))
            with suppress(PolicyError):
                load_folder(folder)
            for each in (name, "manifest.json"):
                (folder / each).write_bytes(sound[each])

        yield read


def resumed() -> Any:
    return at_path("training.npz", lambda path: Checkpoint(path, {}).read(), ConfigError)


def heard(news: Mapping[str, HealthRow]) -> None:
    """As a pool takes it."""
    breaker = Breakers(2, clock=lambda: 1000.0).all[0]
    for row in news.values():
        breaker.on_remote_change(
            None if row.open_until is None else row.open_until - 1000.0, row.ejections, row.changed_at
        )
        assert breaker.left_s <= 30
        breaker.end_trial(False)


def read_store(path: Path) -> None:
    with closing(SqliteStore(path, poll_s=60)) as store:
        for look in (
            store.verify,
            store.totals,
            lambda: list(store.recent(9)),
            lambda: store.capabilities("k"),
            lambda: store.ledger("day"),
            lambda: heard(store.health().result(10)),
        ):
            with suppress(StoreError):
                look()
        with suppress(StoreError):
            store.subscribe(lambda rows: None, last=9)


def store_input(rng: random.Random) -> bytes:
    """A byte that says which of a store's files it is, and its changed bytes: mostly one bit, or the end is gone."""
    files = sorted(_STORE.items())
    which = rng.choice((0, 0, 1, 2, 2))
    data = files[which][1]
    if rng.random() < 0.5:
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = bytes(changed)
    elif rng.random() < 0.5:
        data = data[: rng.randrange(len(data))]
    else:
        data = mutated(data, rng)
    return bytes([which]) + data


@contextmanager
def in_store() -> Iterator[Read]:
    """A store with one of its files changed: refused, or what is not as it was is reported by `verify`."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "s.db"

        def put(changed: Mapping[str, bytes]) -> None:
            for file in Path(name).iterdir():
                file.unlink()
            for file_name, data in {**_STORE, **changed}.items():
                (Path(name) / file_name).write_bytes(data)

        def read(data: bytes) -> None:
            put({sorted(_STORE)[data[0] % len(_STORE)]: data[1:]})
            with suppress(StoreError):
                with closing(SqliteStore(path, poll_s=60)) as store:
                    problems = store.verify()
                    assert all(isinstance(one, BalanceDifference) for one in store.reconcile())
                assert problems or content(path) == intact, "a change that verify does not find"
                with closing(SqliteStore(path, poll_s=60)) as store:
                    store.reconcile(repair=True)
                    store.write(bill()).result(10)

        put({})
        with closing(SqliteStore(path)) as store:
            assert store.verify() == ()
        intact = content(path)
        yield read


_STORE = seeds.store_files()


@contextmanager
def over_http() -> Iterator[Read]:
    """Raw bytes in place of an HTTP response, over a real connection."""
    with asyncio.Runner() as runner:
        said = [b""]

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(said[0])
                await writer.drain()
                writer.close()

        async def start() -> tuple[asyncio.Server, HttpSessions, EndpointClient]:
            server = await asyncio.start_server(speak, "127.0.0.1", 0)
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            sessions = HttpSessions()
            return server, sessions, EndpointClient(Endpoint("e", model="m", base_url=url, timeout_s=5), sessions)

        server, sessions, client = runner.run(start())

        async def call() -> None:
            with suppress(CallFailed):
                readable(await client.complete(Request(MESSAGES, 8)))

        def read(data: bytes) -> None:
            said[0] = data
            runner.run(call())

        yield read
        runner.run(sessions.aclose())
        server.close()


# -- inputs ------------------------------------------------------------------------------------------------------------


def from_json(values: Sequence[Any], dump: Callable[[Any], bytes] = lambda value: json.dumps(value).encode()) -> Make:
    """JSON that is changed as such, or as bytes."""
    written = [dump(value) for value in values]

    def make(rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return mutated(rng.choice(written), rng, written)
        return dump(mutated_json(rng.choice(values), rng))

    return make


def from_bytes(*written: bytes) -> Make:
    """Bytes that are changed."""
    return lambda rng: mutated(rng.choice(written), rng, written)


def bundle_input(rng: random.Random) -> bytes:
    """A byte that says which file and whether its hash fits, and the changed content of that file."""
    with tempfile.TemporaryDirectory() as root:
        files = (
            _BUNDLE or _BUNDLE.update({f.name: f.read_bytes() for f in seeds.bundle(Path(root)).iterdir()}) or _BUNDLE
        )
    which = rng.randrange(256)
    return bytes([which]) + mutated(files[sorted(files)[which % len(files)]], rng)


_BUNDLE: dict[str, bytes] = {}


def folder_input(rng: random.Random) -> bytes:
    """Two bytes that say what is spoiled and how, and what stands in its place."""
    return rng.randbytes(2) + mutated(b"v000001\n", rng, (b"v000002\n", b"{}"))


def response(rng: random.Random) -> bytes:
    """A whole HTTP response, changed."""
    body = json.dumps(rng.choice(seeds.REPLIES)).encode()
    plain = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    refused = b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}"
    return mutated(rng.choice((plain, chunked, refused)), rng, (plain, chunked, refused))


def steady(read: Read) -> Callable[[], Any]:
    """A reader that needs nothing around it."""

    @contextmanager
    def opened() -> Iterator[Read]:
        yield read

    return opened


def _targets() -> Iterator[Target]:
    trajectories, sound = seeds.trajectory_bytes(), seeds.database()
    record_seed = [["k1", "k2"], "choice", 0, [0.5, 0.5], {"a": [1, 0, 5, 0.25, "0.001"]}]
    yield Target("whole replies, read in every way", 280_000, from_json(seeds.REPLIES), steady(reply))
    yield Target("streams, in pieces of any size", 250_000, from_json(seeds.STREAMS, seeds.sse), steady(stream))
    yield Target("texts of replies", 150_000, from_bytes(*(said.encode() for said in seeds.TEXTS)), steady(text))
    yield Target(
        "error replies and Retry-After", 50_000, from_bytes(*(h.encode() for h in seeds.HEADERS)), steady(headers)
    )
    yield Target("what services say of their limits", 50_000, from_bytes(*seeds.LIMITS), steady(limits))
    yield Target("price listings", 30_000, from_json(seeds.LISTINGS), steady(listing))
    yield Target("what a call cost, looked up", 5_000, from_json(seeds.LOOKUPS), steady(lookup))
    yield Target("stored capabilities", 20_000, from_json([seeds.CAPABILITIES]), steady(remembered))
    yield Target("stored records", 20_000, from_json([record_seed]), steady(record))
    yield Target("stored trajectories", 20_000, from_bytes(trajectories), steady(trajectory))
    yield Target("ONNX files, before they are opened", 15_000, from_bytes(*seeds.models()), steady(model))
    yield Target("requests for chat completions", 30_000, from_json(callers.CHATS), steady(callers.chat))
    yield Target("feedback over HTTP", 10_000, from_json(callers.FEEDBACKS), steady(callers.feedback))
    yield Target("JSON schemas, and replies to them", 20_000, from_json(callers.SCHEMAS), steady(callers.schema))
    yield Target("amounts of money", 20_000, from_json(callers.AMOUNTS), steady(callers.amounts))
    yield Target("pool files", 10_000, from_bytes(seeds.POOL), lambda: at_path("pool.toml", load_pool, ConfigError))
    yield Target("outcome logs", 5_000, from_json([seeds.LOG]), lambda: at_path("log.jsonl", read_log, ConfigError))
    yield Target("policy bundles", 4_000, bundle_input, in_bundle)
    yield Target("policy folders", 2_000, folder_input, callers.policy_folder)
    yield Target("training checkpoints", 3_000, from_bytes(seeds.checkpoint()), resumed)
    yield Target("HTTP responses on a socket", 2_000, response, over_http)
    yield Target("stores with a changed file", 3_000, store_input, in_store)
    yield Target("databases", 1_000, from_bytes(sound), lambda: at_path("s.db", read_store, StoreError))


TARGETS = tuple(_targets())
