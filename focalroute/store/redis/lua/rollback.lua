-- Make a version that is kept the current one. ARGV: the version. Gives whether.

for _, one in ipairs(cjson.decode(redis.call('HGET', policy, 'versions') or '[]')) do
    if one[1] == ARGV[1] then
        redis.call('HSET', policy, 'current', ARGV[1], 'since', string.format('%.6f', now()))
        return 1
    end
end
return 0
