-- Finds accounts whose balance differs from the sum of ledger and reservations. ARGV: '1' if rows were dropped, so that
-- only the account of all calls and damaged accounts can be checked; '1' to replace the balances by the sums. Returns
-- for each account its name, its balance, and the sum.

local checked, kept = {}, {}
local fields = redis.call('HGETALL', balances)
for i = 1, #fields, 2 do
    local field, text = fields[i], fields[i + 1]
    local period, tag = string.match(field, '^(%S+) (.*)$')
    local period_s = tonumber(period)
    local sound = string.match(text, SOUND)
    if ARGV[1] ~= '1' or (tag == '' and period_s == 0) or not sound then
        local number = period_at(period_s, now())
        if sound and credible(period_s, tonumber(string.match(text, '^%d+'))) then
            number = tonumber(string.match(text, '^%d+'))
        end
        checked[#checked + 1] = {tag, period_s, number}
        kept[#kept + 1] = text
    end
end
local reply = {}
for i, sum in ipairs(sum_accounts(checked)) do
    local tag, period_s = checked[i][1], checked[i][2]
    if kept[i] ~= account_text(sum) then
        reply[#reply + 1] = account_field(tag, period_s)
        reply[#reply + 1] = kept[i]
        reply[#reply + 1] = account_text(sum)
        if ARGV[2] == '1' then
            write_account(tag, period_s, sum)
        end
    end
end
return reply
