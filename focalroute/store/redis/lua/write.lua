-- Writes the rows of one call: all of them, or none, and returns the reason.
-- ARGV: the writer and the number of its call, which must be the next; then each row as its kind, its number of fields
-- and the fields; the epoch. A call that is sent again, because its reply was lost, is recognised and not repeated.

if lost_data() then
    return LOST_DATA
end
local writer, number = ARGV[1], tonumber(ARGV[2])
local done = tonumber(string.match(redis.call('HGET', writers, writer) or '', '^%d+') or '')
if done and number > done + 1 then
    return {'early'}
end
local again = done ~= nil and number <= done
local mark = writer .. ' ' .. ARGV[2]

local rows = {}
local at = 3
while at <= #ARGV do
    local row = {kind = ARGV[at]}
    local count = tonumber(ARGV[at + 1])
    for i = 1, count do
        row[i] = ARGV[at + 1 + i]
    end
    rows[#rows + 1] = row
    at = at + 2 + count
end

local function key_of(row)
    return KEYS[tonumber(row[1])]
end

-- Returns how many feedbacks a source gave on an answer, and its latest with its entry. Earlier ones are kept, up to
-- MOST_REVISIONS of focalroute.store.base.
local function given_by(key, source)
    local count, entry, last = 0, nil, nil
    local kept = redis.call('HGET', key, 'said:' .. source)
    while kept do
        count, entry, last = count + 1, string.match(kept, '^([^\n]*)\n[^\n]*\n(.*)$')
        kept = redis.call('HGET', key, 'said:' .. source .. '\30' .. count)
    end
    return count, entry, last
end

local function refusal()
    local made, probes = {}, {}
    for _, row in ipairs(rows) do
        local id = row[2]
        if row.kind == 'answer' then
            local by = redis.call('HGET', key_of(row), 'by')
            if made[id] or (by and not (again and by == mark)) then
                return {'duplicate', id}
            end
            made[id] = true
        elseif row.kind == 'feedback' then
            if not made[id] and redis.call('EXISTS', key_of(row)) == 0 then
                return {'unknown', id}
            end
        elseif row.kind == 'probe' then
            local name = id .. '\n' .. row[3]
            if not made[id] and redis.call('EXISTS', key_of(row)) == 0 then
                return {'probe'}
            end
            if not again and (probes[name] or redis.call('HEXISTS', key_of(row), 'probe:' .. row[3]) == 1) then
                return {'probe'}
            end
            probes[name] = true
        end
    end
end

local apply = {}

function apply.answer(row)
    local key = key_of(row)
    redis.call('HSET', key, 'by', mark, 'id', row[2], 'created_at', row[3], 'record', row[4], 'receipt', row[6])
    if row[5] ~= '' then
        redis.call('HSET', key, 'trajectory', row[5])
    end
    if row[7] ~= '' then
        redis.call('HSET', key, 'texts', row[7])
    end
    redis.call('HSET', key, 'entry', redis.call('XADD', answers, '*', 'id', row[2]))
end

function apply.feedback(row)
    local key, source = key_of(row), row[3]
    local count, last_entry, last = given_by(key, source)
    if last ~= row[4] then
        if count == 100 then
            count = 99
            redis.call('XDEL', feedback, last_entry)
        end
        local field = 'said:' .. source .. (count > 0 and '\30' .. count or '')
        local entry = redis.call('XADD', feedback, '*', 'id', row[2], 'source', row[3], 'said', row[4], 'at', row[5])
        redis.call('HSET', key, field, entry .. '\n' .. row[5] .. '\n' .. row[4])
    end
end

function apply.probe(row)
    redis.call('HSET', key_of(row), 'probe:' .. row[3], row[4])
    redis.call('XADD', probed, '*', 'id', row[2])
end

function apply.bill(row)
    local endpoint, moment, micro, pico, prompt, completion, tags, text, held = unpack(row, 1, 9)
    local ended, estimated = NOTHING, NOTHING
    local tag_list, at = cjson.decode(tags), tonumber(moment)
    resume(tag_list, at)
    if held ~= '' then
        ended, estimated = end_reservation(held, endpoint, row[10], row[11])
    end
    local known = ended ~= NOTHING or estimated ~= NOTHING
    if is_doubt(held) and not known then
        return -- its time is over, and the estimate stands
    end
    local entry = redis.call('XADD', ledger, '*', 'at', moment, 'micro', micro, 'pico', pico, 'tags', tags, 'row', text)
    add_to_totals(endpoint, '', prompt, completion, micro, pico)
    if estimated == NOTHING then -- else the estimate's ask was counted
        count_ask(text)
    end
    local held_on = NOTHING
    if known and (row[12] or '') ~= '' then -- a journal of an earlier version has no such field
        held_on = hold('doubt:' .. held, moment, row[12], row[13], tags, text, now() + DOUBT_S)
        note_estimate('doubt:' .. held, entry, micro, pico)
    end
    local spent = micro == '' and NOTHING or {tonumber(micro), tonumber(pico)}
    add_to_accounts(tag_list, at, minus(spent, estimated), minus(held_on, ended))
end

function apply.release(row)
    local held, endpoint, tags, moment = unpack(row, 1, 4)
    local kept = redis.call('HGET', reservations, held)
    if kept then -- a caller that gave up waiting for the reservation does not know its time
        moment = cjson.decode(kept).at
    end
    local tag_list, at = cjson.decode(tags), tonumber(moment)
    resume(tag_list, at)
    local ended, estimated = end_reservation(held, endpoint, row[5], row[6])
    add_to_accounts(tag_list, at, minus(NOTHING, estimated), minus(NOTHING, ended))
end

-- Keeps the latest value by the writers' clocks. A value from a clock that is ahead is replaced by any other.
local function keep_latest(hash, key, moment, text)
    local kept = redis.call('HGET', hash, key)
    local last = kept and tonumber(string.match(kept, '^[^\n]*'))
    if not last or tonumber(moment) >= last or not credible(1, last) then
        redis.call('HSET', hash, key, moment .. '\n' .. text)
    end
end

function apply.capabilities(row)
    keep_latest(capabilities, row[1], row[2], row[3])
end

function apply.health(row)
    keep_latest(health, row[1], row[2], row[3])
end

local refused = refusal()
if not again then
    if not refused then
        for _, row in ipairs(rows) do
            apply[row.kind](row)
        end
    end
    redis.call('HSET', writers, writer, ARGV[2] .. ' ' .. redis.call('TIME')[1])
end
return refused or {'done'}
