-- The balances of accounts now. ARGV: whether to open those that are not open yet ('1'), then tag and period of each.

local at = now()
local said = {}
for i = 2, #ARGV, 2 do
    local tag, period_s = ARGV[i], tonumber(ARGV[i + 1])
    if ARGV[1] == '1' and redis.call('HEXISTS', balances, account_field(tag, period_s)) == 0 then
        local periods = periods_of(tag)
        periods[#periods + 1] = period_s
        redis.call('HSET', accounts, tag, cjson.encode(periods))
        write_account(tag, period_s, added_up(tag, period_s, period_at(period_s, at)))
    end
    said[#said + 1] = shown(current(tag, period_s, at))
end
return said
