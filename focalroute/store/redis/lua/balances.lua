-- Returns the present balances of accounts. ARGV: for each account its tag, its period, and '1' to open it if needed;
-- then the epoch.

if lost_data() then
    return LOST_DATA
end
local at = now()
local said = {}
for i = 1, #ARGV, 3 do
    local tag, period_s = ARGV[i], tonumber(ARGV[i + 1])
    if not is_open(tag, period_s) then
        if ARGV[i + 2] ~= '1' then
            return NO_ACCOUNT
        end
        local periods = {period_s}
        for _, one in ipairs(periods_of(tag)) do
            if one ~= period_s then
                periods[#periods + 1] = one
            end
        end
        redis.call('HSET', accounts, tag, cjson.encode(periods))
        write_account(tag, period_s, added_up(tag, period_s, period_at(period_s, at)))
    end
    said[#said + 1] = shown(current(tag, period_s, at))
end
return said
