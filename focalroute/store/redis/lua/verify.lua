-- Accounts whose balance is not what the ledger and the reservations add up to. ARGV: '1' if rows were dropped, so
-- that only the account of everything can be checked. Gives of each its name, what is kept, and what it should be.

local said = {}
local fields = redis.call('HKEYS', balances)
for _, field in ipairs(fields) do
    local period, tag = string.match(field, '^(%S+) (.*)$')
    local period_s = tonumber(period)
    if ARGV[1] ~= '1' or (tag == '' and period_s == 0) then
        local kept = read_account(tag, period_s)
        local number = credible(period_s, kept.period) and kept.period or period_at(period_s, present)
        local true_row = added_up(tag, period_s, number)
        if shown(kept) ~= shown(true_row) then
            said[#said + 1] = field
            said[#said + 1] = shown(kept)
            said[#said + 1] = shown(true_row)
        end
    end
end
return said
