-- Drops old rows. ARGV: the last entry of the ledger to drop ('' for none), how many feedbacks and probes to keep in
-- their streams, then the stream entries of the answers to drop, whose keys follow the fixed keys.

local dropped = 0
if ARGV[1] ~= '' then
    for _, entry in ipairs(redis.call('XRANGE', ledger, '-', ARGV[1])) do
        local sound, row = pcall(cjson.decode, fields_of(entry[2]).row)
        redis.call('SREM', asks, sound and row[1] or '')
    end
    local ms, seq = string.match(ARGV[1], '^(%d+)-(%d+)$')
    dropped = redis.call('XTRIM', ledger, 'MINID', '=', ms .. '-' .. whole(tonumber(seq) + 1))
    if dropped > 0 then
        redis.call('HSET', policy, 'ledger_dropped', '1')
    end
end
redis.call('XTRIM', feedback, 'MAXLEN', '=', ARGV[2])
redis.call('XTRIM', probed, 'MAXLEN', '=', ARGV[2])
for i = 3, #ARGV do
    redis.call('XDEL', answers, ARGV[i])
    redis.call('DEL', KEYS[13 + i])
end
return #ARGV - 2
