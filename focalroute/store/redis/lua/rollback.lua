-- Makes a kept version current. ARGV: the version. Returns 1, or 0 if it is not kept.

for _, one in ipairs(cjson.decode(redis.call('HGET', policy, 'versions') or '[]')) do
    if one[1] == ARGV[1] then
        redis.call('HSET', policy, 'current', ARGV[1], 'since', string.format('%.6f', now()))
        return 1
    end
end
return 0
