-- Takes, renews or ends the learner's lease. ARGV: 'take', 'keep' or 'give up'; the holder; seconds. Returns its
-- fencing token, or 0 if the lease is not held. Each new holder gets a greater token, so late writes of an earlier one
-- are refused.

local what, who, seconds = ARGV[1], ARGV[2], tonumber(ARGV[3])
local at = now()
local held = redis.call('HMGET', policy, 'learner', 'token', 'until')
local token, last = tonumber(held[2] or '0'), tonumber(held[3] or '0')
local own = held[1] == who and at < last
if what == 'give up' then
    if own then
        redis.call('HSET', policy, 'until', '0')
    end
    return 0
end
if not own then
    if what == 'keep' or at < last then
        return 0
    end
    token = token + 1
    redis.call('HSET', policy, 'learner', who, 'token', whole(token))
end
redis.call('HSET', policy, 'until', string.format('%.6f', at + seconds))
return token
