"""Validates, stores and applies feedback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from focalroute.core.errors import FeedbackError
from focalroute.core.event_loops import PerLoop
from focalroute.core.records import Feedback
from focalroute.learn.reward import FeedbackArguments, credit, judged, outranks, unjudged
from focalroute.observe.observer import New, Observer
from focalroute.policy.slot import PolicySlot
from focalroute.serving.concurrency import WriteBatcher
from focalroute.serving.openai_api import answer_id_of
from focalroute.serving.updates import Updater
from focalroute.store.base import Store, StoredAnswer
from focalroute.store.engine import unknown_answer

_log = logging.getLogger("focalroute")

_LONGEST_SOURCE = 200
_REMEMBERED = 4096  # latest answers of this process


class FeedbackHandler:
    """Commits feedback, and passes committed feedback on to the observer, the policy and the updater.

    Args:
        window: how many outcomes the observer keeps; that many of the store's latest answers are learned from at once.
        learn_from_agreement: whether answers without feedback teach, too.
        on_feedback: called with each feedback that this process has committed.
    """

    def __init__(
        self,
        store: Store,
        batchers: PerLoop[WriteBatcher],
        observer: Observer,
        slot: PolicySlot,
        updater: Updater,
        *,
        window: int,
        learn_from_agreement: bool = True,
        on_feedback: Callable[[Feedback], None] | None = None,
    ) -> None:
        self._store = store
        self._batchers = batchers
        self._answers: OrderedDict[str, StoredAnswer] = OrderedDict()
        self._observer = observer
        self._slot = slot
        self._updater = updater
        self._window = window
        self._learn_from_agreement = learn_from_agreement
        self._on_feedback = on_feedback
        self._sources: OrderedDict[str, str] = OrderedDict()
        self._started = False  # feedback from before the start is learned from, but starts no update
        learn_stored(store, observer, self._on_commit, window=window, learn_from_agreement=learn_from_agreement)
        self._started = True

    async def submit(self, answer_id: str, *, source: str, **said: Unpack[FeedbackArguments]) -> None:
        """Check a feedback and commit it; see `focalroute.AsyncEnsemble.feedback`."""
        if not isinstance(answer_id, str) or not answer_id.isprintable():
            raise FeedbackError("feedback: give the Answer, or its id as text")
        answer_id = answer_id_of(answer_id)
        if not isinstance(source, str) or not 0 < len(source) <= _LONGEST_SOURCE or not source.isprintable():
            raise FeedbackError(f"source: give a name of at most {_LONGEST_SOURCE} printable characters")
        stored = self._answers.get(answer_id) or await self._read(answer_id)
        if stored is None:
            raise unknown_answer(answer_id)
        value, key = judged(stored, **said)
        feedback = Feedback(answer_id, value, key, source, time.time())
        await self._batchers.here().write((feedback,))
        if self._on_feedback is not None:
            self._on_feedback(feedback)

    async def _read(self, answer_id: str) -> StoredAnswer | None:
        try:
            return await asyncio.to_thread(self._store.answer, answer_id)
        except RuntimeError:  # the program ends, and no thread takes work any more
            return self._store.answer(answer_id)

    def remember(self, answer: StoredAnswer) -> None:
        """Keep the parts of an answer that feedback is checked against, so that it need not be read from the store."""
        self._answers[answer.id] = StoredAnswer(
            answer.id, answer.created_at, answer.keys, answer.kind, answer.answered, answer.probabilities, {}, None, ""
        )
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)  # atomic: several event loops may do this at once

    def learn_agreement(self, answer: StoredAnswer, *, new: New = "answer") -> None:
        """Learn from the agreement of an answer's members, until feedback replaces that; see `Observer.agree`."""
        if self._learn_from_agreement:
            self._observer.agree(*unjudged(answer), new=new)

    def _on_commit(self, rows: Sequence[tuple[StoredAnswer, Feedback]]) -> None:
        """Learn from feedback that this or another process has committed."""
        news = 0
        for stored, feedback in rows:
            known = self._sources.get(stored.id)
            if known is None or outranks(feedback.source, known):
                if stored.id not in self._answers:  # so that the label shows how wrong agreement was
                    self.learn_agreement(stored, new="nothing")
                changes = self._observer.learn(credit(stored, feedback), feedback.created_at)
                if known != feedback.source and self._slot.name is not None:
                    self._slot.learn(credit(replace(stored, probes=()), feedback), len(stored.keys))
                self._remember_source(stored.id, feedback.source)
                for name, change in changes.items() if self._started else ():
                    _log.info("endpoint %r changed: %s", name, change)
            news += known != feedback.source  # not news if only an exploration call was added
        if self._started:
            self._updater.on_feedback(news)

    def _remember_source(self, answer_id: str, source: str) -> None:
        self._sources[answer_id] = source
        if len(self._sources) > 2 * self._window:
            self._sources.popitem(last=False)


def learn_stored(
    store: Store,
    observer: Observer,
    on_commit: Callable[[Sequence[tuple[StoredAnswer, Feedback]]], None],
    *,
    window: int,
    learn_from_agreement: bool,
) -> None:
    """Learn from the latest ``window`` answers of a store: by feedback, then by agreement on those without.

    Args:
        on_commit: called now with the feedback on these answers, and later with each commit.
    """
    latest = [unjudged(answer) for answer, _ in store.recent(window)] if learn_from_agreement else []
    observer.recount_pairs(latest)  # how often members differ tells how much a label counts
    store.subscribe(on_commit, last=window)
    observer.recount_pairs(())  # each is counted again below
    for outcome, choices in latest:
        observer.agree(outcome, choices)
