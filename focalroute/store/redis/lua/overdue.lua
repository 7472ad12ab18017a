-- Turn what dead processes had reserved into estimated rows of the ledger, up to 1,000 at a time. Gives how many.
-- What was reserved by a clock far ahead is overdue when as much time has gone from now as it was made for.

local at = now()
local later = redis.call('ZRANGEBYSCORE', due, string.format('%.6f', at + 60), '+inf', 'WITHSCORES')
for i = 1, #later, 2 do
    local made, until_s = tonumber(cjson.decode(redis.call('HGET', reservations, later[i])).at), tonumber(later[i + 1])
    if made > at + 60 and until_s > made then
        redis.call('ZADD', due, string.format('%.6f', at + until_s - made), later[i])
    end
end
local ids = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('(%.6f', at), 'LIMIT', 0, 1000)
for _, id in ipairs(ids) do
    local held = cjson.decode(redis.call('HGET', reservations, id))
    local endpoint = cjson.decode(held.row)[2]
    local entry = redis.call('XADD', ledger, '*', 'at', held.at, 'micro', held.micro, 'pico', held.pico, 'tags',
        held.tags, 'row', held.row, 'overdue', id)
    redis.call('HSET', overdue, id, entry)
    redis.call('HDEL', reservations, id)
    redis.call('ZREM', due, id)
    add_up(endpoint, 1, '0', '0', held.micro, held.pico)
    local amount = {tonumber(held.micro), tonumber(held.pico)}
    move(cjson.decode(held.tags), tonumber(held.at), amount, minus(NOTHING, amount))
end
return #ids
