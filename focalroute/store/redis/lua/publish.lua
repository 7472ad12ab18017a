-- Ends an update: makes its bundle current, if there is one, and acknowledges the feedback that it used.
-- ARGV: the lease's token ('' without a lease), the version that was current at the start ('0' for none), the new one
-- ('' for none), how many versions to keep, how many files, each file's name and bytes; then the entries of feedback.
-- Returns 'done', or changes nothing: 'fenced' if the lease was lost, 'moved' if another version is current by now.

local token, parent, version, keep, files = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local kept = redis.call('HMGET', policy, 'token', 'until', 'current', 'versions')
if token ~= '' and (kept[1] ~= token or now() >= tonumber(kept[2])) then
    return 'fenced'
end
if (kept[3] or '0') ~= parent then
    return 'moved'
end
if version ~= '' then
    local names = {}
    for i = 6, 5 + 2 * files, 2 do
        names[#names + 1] = ARGV[i]
        redis.call('HSET', bundles, version .. '/' .. ARGV[i], ARGV[i + 1])
    end
    local versions = cjson.decode(kept[4] or '[]')
    versions[#versions + 1] = {version, names}
    while #versions > keep do
        local place = versions[1][1] == parent and 2 or 1
        for _, name in ipairs(versions[place][2]) do
            redis.call('HDEL', bundles, versions[place][1] .. '/' .. name)
        end
        table.remove(versions, place)
    end
    redis.call('HSET', policy, 'current', version, 'since', string.format('%.6f', now()), 'versions', cjson.encode(versions))
end
for i = 6 + 2 * files, #ARGV do
    if redis.call('XACK', feedback, 'learner', ARGV[i]) == 1 then
        redis.call('HINCRBY', policy, 'learned', 1)
    end
end
return 'done'
