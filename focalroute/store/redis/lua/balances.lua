-- Returns the present balances of accounts. ARGV: for each account its tag, the length of its periods, and '1' to open
-- it if needed; then the epoch.

if lost_data() then
    return LOST_DATA
end
local at = now()
local new = {}
for i = 1, #ARGV, 3 do
    local tag, period_s = ARGV[i], tonumber(ARGV[i + 1])
    if not is_open(tag, period_s) then
        if ARGV[i + 2] ~= '1' then
            return NO_ACCOUNT
        end
        new[#new + 1] = {tag, period_s, period_at(period_s, at)}
    end
end
local sums = {}
if #new > 0 then
    sums = sum_accounts(new)
end
for i, sum in ipairs(sums) do
    local tag, period_s = new[i][1], new[i][2]
    local periods = {period_s}
    for _, one in ipairs(periods_of(tag)) do
        if one ~= period_s then
            periods[#periods + 1] = one
        end
    end
    redis.call('HSET', accounts, tag, cjson.encode(periods))
    write_account(tag, period_s, sum)
end
local reply = {}
for i = 1, #ARGV, 3 do
    reply[#reply + 1] = account_text(current(ARGV[i], tonumber(ARGV[i + 1]), at))
end
return reply
