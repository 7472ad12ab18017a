-- Turn what dead processes had reserved into estimated rows of the ledger, up to 1,000 at a time. Gives how many.

local ids = redis.call('ZRANGEBYSCORE', due, '-inf', string.format('(%.6f', now()), 'LIMIT', 0, 1000)
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
