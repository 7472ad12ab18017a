-- Accounts whose balance is not what the ledger and the reservations add up to. ARGV: '1' if rows were dropped, so
-- that only the account of everything can be checked, and those that cannot be read; '1' to write the sums. Gives of each
-- its name, what is kept, and what it should be.

local said = {}
local fields = redis.call('HGETALL', balances)
for i = 1, #fields, 2 do
    local field, text = fields[i], fields[i + 1]
    local period, tag = string.match(field, '^(%S+) (.*)$')
    local period_s = tonumber(period)
    local sound = string.match(text, '^%d+ %-?%d+ %d+ %-?%d+ %d+$')
    if ARGV[1] ~= '1' or (tag == '' and period_s == 0) or not sound then
        local number = period_at(period_s, now())
        if sound and credible(period_s, tonumber(string.match(text, '^%d+'))) then
            number = tonumber(string.match(text, '^%d+'))
        end
        local true_row = added_up(tag, period_s, number)
        if text ~= shown(true_row) then
            said[#said + 1] = field
            said[#said + 1] = text
            said[#said + 1] = shown(true_row)
            if ARGV[2] == '1' then
                write_account(tag, period_s, true_row)
            end
        end
    end
end
return said
