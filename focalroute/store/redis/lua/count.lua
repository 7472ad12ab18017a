-- Counts the asks of up to 1,000 rows of the ledger, from entry ARGV[1] on. Returns where to continue, '' at the end.

local rows = redis.call('XRANGE', ledger, ARGV[1], '+', 'COUNT', 1000)
for _, entry in ipairs(rows) do
    pcall(count_ask, fields_of(entry[2]).row)
end
return rows[1] and '(' .. rows[#rows][1] or ''
