"""The names of all that is recorded: OpenTelemetry's conventions for generative AI (in development), and our own.

https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

# Spans; a call's is named "chat {model}".
ASK = "focalroute.ask"
DECIDE = "focalroute.decide"
FUSE = "focalroute.fuse"

# Of a call, by the conventions.
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
TOKENS_IN = "gen_ai.usage.input_tokens"
TOKENS_OUT = "gen_ai.usage.output_tokens"
TOKENS_CACHED = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"

#: A service -> its name in the conventions; the others keep our name.
PROVIDERS = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}

# Of a call, ours.
ENDPOINT = "focalroute.endpoint"
ROUND = "focalroute.round"
ATTEMPTS = "focalroute.attempts"
HEDGE_OF = "focalroute.hedge_of"
COST_USD = "focalroute.cost_usd"

# Of an ask; RESPONSE_ID has its id, too, which links it to its feedback.
ANSWER_ID = "focalroute.answer.id"
ROUNDS = "focalroute.rounds"
MEMBERS = "focalroute.members"
POLICY = "focalroute.policy.name"
POLICY_VERSION = "focalroute.policy.version"
CANDIDATES = "focalroute.candidates"
CONFIDENCE = "focalroute.confidence"
DEGRADED = "focalroute.degraded"
INPUT_MESSAGES = "gen_ai.input.messages"  # only on request
OUTPUT_MESSAGES = "gen_ai.output.messages"  # only on request

# Of a decision.
CONSIDERED = "focalroute.considered"
PICKED = "focalroute.picked"
PROBABILITY = "focalroute.probability"

# Feedback, an event.
EVALUATION = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_SCORE = "gen_ai.evaluation.score.value"
SOURCE = "focalroute.feedback.source"

# Metrics, and the bounds that the conventions advise for their buckets.
CALL_SECONDS = "gen_ai.client.operation.duration"
TOKENS = "gen_ai.client.token.usage"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - no secret
ASK_SECONDS = "focalroute.ask.duration"
COST = "focalroute.cost"
SECONDS_BOUNDS = tuple(0.01 * 2**i for i in range(14))
TOKENS_BOUNDS = tuple(float(4**i) for i in range(14))
