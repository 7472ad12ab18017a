-- Turns reservations of dead processes into estimated rows of the ledger, and ends doubts: up to 1,000. Returns how
-- many. A reservation made by a clock far ahead gets its full time again, from now.

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
    local amount = {tonumber(held.micro), tonumber(held.pico)}
    local spent = NOTHING
    resume(cjson.decode(held.tags), tonumber(held.at))
    if is_doubt(id) then
        redis.call('HDEL', overdue, id)
    else
        spent = amount
        local entry = redis.call('XADD', ledger, '*', 'at', held.at, 'micro', held.micro, 'pico', held.pico, 'tags',
            held.tags, 'row', held.row, 'overdue', id)
        note_estimate(id, entry, held.micro, held.pico)
        add_to_totals(cjson.decode(held.row)[2], '', '0', '0', held.micro, held.pico)
        count_ask(held.row)
    end
    redis.call('HDEL', reservations, id)
    redis.call('ZREM', due, id)
    add_to_accounts(cjson.decode(held.tags), tonumber(held.at), spent, minus(NOTHING, amount))
end
return #ids
