-- Reserves an amount if it fits all limits. An existing reservation is granted again.
-- ARGV: id, micro, pico, seconds after which its process counts as dead, tags, the ledger row for that case; then for
-- each limit its tag, period, micro and pico; the epoch. Returns whether it is granted, the time, and the balances.

if lost_data() then
    return LOST_DATA
end
local id, amount, until_s, tags, text = ARGV[1], {tonumber(ARGV[2]), tonumber(ARGV[3])}, tonumber(ARGV[4]), ARGV[5],
    ARGV[6]
local limits = {}
local at = now()
for i = 7, #ARGV, 4 do
    local limit = {tag = ARGV[i], period_s = tonumber(ARGV[i + 1]), usd = {tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])}}
    limits[#limits + 1] = limit
    if not is_open(limit.tag, limit.period_s) then
        return NO_ACCOUNT
    end
    at = math.max(at, current(limit.tag, limit.period_s, 0).period * limit.period_s)
end

local kept = redis.call('HGET', reservations, id)
local granted = true
if kept then
    at = tonumber(cjson.decode(kept).at)
else
    for _, limit in ipairs(limits) do
        local row = current(limit.tag, limit.period_s, at)
        granted = granted and at_most(plus(plus(row.spent, row.reserved), amount), limit.usd)
    end
end
local moment = string.format('%.6f', at)
if granted and not kept then
    local tag_list, begun = cjson.decode(tags), tonumber(moment)
    resume(tag_list, begun)
    hold(id, moment, ARGV[2], ARGV[3], tags, text, at + until_s)
    add_to_accounts(tag_list, begun, NOTHING, amount)
end
local reply = {granted and 1 or 0, moment}
for _, limit in ipairs(limits) do
    reply[#reply + 1] = account_text(current(limit.tag, limit.period_s, at))
end
return reply
