-- Shared by all scripts. KEYS begin with the fixed keys, in the order of `focalroute.store.redis.connection.FIXED`.
-- Lua's numbers are doubles, which are exact up to 2^53. So an amount is a pair: whole microdollars, and the rest in
-- picodollars, 0 to 999,999. All other numbers that must stay exact are passed as text.

local answers, feedback, probed, ledger, totals, reservations, due, overdue, balances, accounts, capabilities, health,
    writers, policy, bundles = unpack(KEYS, 1, 15)
local asks = KEYS[#KEYS]

local MICRO = 1000000
local NOTHING = {0, 0}

local function whole(number)
    return string.format('%.0f', number)
end

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / MICRO
end

local function plus(a, b)
    local pico = a[2] + b[2]
    local carry = math.floor(pico / MICRO)
    return {a[1] + b[1] + carry, pico - carry * MICRO}
end

local function minus(a, b)
    return plus(a, {-b[1], -b[2]})
end

local function at_most(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[2] <= b[2])
end

local function period_at(period_s, at)
    return period_s == 0 and 0 or math.floor(at / period_s)
end

-- If Redis loses its data, it is empty, or has the data of the process that opened the store next. So the epoch, an id
-- written when the store was opened, is missing or differs. It is the last argument of the scripts that count money.

local function lost_data()
    return redis.call('HGET', policy, 'epoch') ~= table.remove(ARGV)
end

local LOST_DATA = {err = 'LOSTDATA the store is not the one that was opened'}
local NO_ACCOUNT = {err = 'NOACCOUNT an account that was opened is missing'}

-- A period that begins more than a minute from now comes from a wrong clock, Redis's own or a client's.

local LATEST_CALLS = 1000 -- see focalroute.store.accounts

local present
local function credible(period_s, number)
    present = present or now()
    return number * period_s <= present + 60
end

-- accounts: a tag ('' for all calls) and the length of its periods

local function account_field(tag, period_s)
    return whole(period_s) .. ' ' .. tag
end

-- A balance as `account_text` writes it. Any other text is damaged, and its account counts as missing.
local SOUND = '^%d+ %-?%d+ %d+ %-?%d+ %d+$'

local function read_account(tag, period_s)
    local text = redis.call('HGET', balances, account_field(tag, period_s))
    if not text or not string.match(text, SOUND) then
        return {missing = true, period = 0, spent = NOTHING, reserved = NOTHING}
    end
    local n = {}
    for number in string.gmatch(text, '%S+') do
        n[#n + 1] = tonumber(number)
    end
    return {period = n[1], spent = {n[2], n[3]}, reserved = {n[4], n[5]}}
end

local function account_text(row)
    return table.concat({whole(row.period), whole(row.spent[1]), whole(row.spent[2]), whole(row.reserved[1]),
        whole(row.reserved[2])}, ' ')
end

local function write_account(tag, period_s, row)
    redis.call('HSET', balances, account_field(tag, period_s), account_text(row))
end

local function periods_of(tag)
    return cjson.decode(redis.call('HGET', accounts, tag) or '[]')
end

local function is_open(tag, period_s)
    if read_account(tag, period_s).missing then
        return false
    end
    for _, one in ipairs(periods_of(tag)) do
        if one == period_s then
            return true
        end
    end
    return false
end

local sum_accounts, has_calls -- see below

-- Returns an account's amounts in the period of this moment, or in its latest period if that is later. Periods never go
-- back, except from one that a wrong clock began: then the present period gets the sums of ledger and reservations, and
-- `clock_jumps` is increased, so that every client can report it. A period to which a clock returns gets its sums, too.
local function current(tag, period_s, at)
    local row = read_account(tag, period_s)
    if not credible(period_s, row.period) then
        row = sum_accounts({{tag, period_s, period_at(period_s, present)}})[1]
        write_account(tag, period_s, row)
        redis.call('HINCRBY', policy, 'clock_jumps', 1)
    end
    local number = period_at(period_s, at)
    if number <= row.period then
        return row
    end
    if has_calls(tag, period_s, number) then
        row = sum_accounts({{tag, period_s, number}})[1]
        write_account(tag, period_s, row)
        return row
    end
    return {period = number, spent = NOTHING, reserved = NOTHING}
end

-- Returns the tags of the accounts that a call counts towards: '' and each of its own tags once.
local function distinct(tags)
    local seen, found = {[''] = true}, {''}
    for _, tag in ipairs(tags) do
        if not seen[tag] then
            seen[tag] = true
            found[#found + 1] = tag
        end
    end
    return found
end

-- If the clock was set back and has returned, resumes what open accounts had spent in a call's period. To be called
-- before the call is counted.
local function resume(tags, at)
    for _, tag in ipairs(distinct(tags)) do
        for _, period_s in ipairs(periods_of(tag)) do
            local row, number = read_account(tag, period_s), period_at(period_s, at)
            if not row.missing and number > row.period and credible(period_s, number) then
                current(tag, period_s, at)
            end
        end
    end
end

-- Adds to every open account that a call with these tags, begun at this moment, counts towards.
local function add_to_accounts(tags, at, spent, reserved)
    for _, tag in ipairs(distinct(tags)) do
        for _, period_s in ipairs(periods_of(tag)) do
            local row = read_account(tag, period_s)
            local number = period_at(period_s, at)
            if row.missing then
                -- it was lost: this amount must not pass for the whole balance
            elseif number > row.period and credible(period_s, number) then -- a wrong clock begins no period
                local held = at_most(NOTHING, reserved) and reserved or NOTHING
                write_account(tag, period_s, {period = number, spent = spent, reserved = held})
            elseif number == row.period then
                row.spent, row.reserved = plus(row.spent, spent), plus(row.reserved, reserved)
                write_account(tag, period_s, row)
            end
        end
    end
end

-- the ledger: a bounded stream of rows, and for each endpoint the totals of all rows ever

-- Adds a row to the totals of an endpoint, or subtracts one (sign '-', else ''). Tokens and amounts are text.
local function add_to_totals(endpoint, sign, prompt, completion, micro, pico)
    local function total(what, number)
        if number ~= '0' then
            redis.call('HINCRBY', totals, cjson.encode({endpoint, what}), sign .. number)
        end
    end
    total('calls', '1')
    total('prompt', prompt)
    total('completion', completion)
    if micro == '' then
        total('unpriced', '1')
    else
        total('micro', micro)
        total('pico', pico)
    end
end

-- Counts the ask of a ledger row, given as JSON, at the endpoint that it called first.
local function count_ask(text)
    local id, endpoint = unpack(cjson.decode(text), 1, 2)
    local kind = string.sub(id, 1, 5)
    if kind ~= 'probe' and kind ~= 'judge' and redis.call('SADD', asks, id) == 1 then
        redis.call('HINCRBY', totals, cjson.encode({endpoint, 'asks'}), 1)
    end
end

-- A doubt is the part of a reservation that stays held, for `focalroute.store.accounts.DOUBT_S`, after its call broke
-- off and got an estimated row in the ledger.

local DOUBT_S = 86400

local function is_doubt(id)
    return string.sub(id, 1, 6) == 'doubt:'
end

local function hold(id, moment, micro, pico, tags, row, until_s)
    local held = {at = moment, micro = micro, pico = pico, tags = tags, row = row}
    redis.call('HSET', reservations, id, cjson.encode(held))
    redis.call('ZADD', due, string.format('%.6f', until_s), id)
    return {tonumber(micro), tonumber(pico)}
end

-- Notes which entry of the ledger estimates the call of a reservation.
local function note_estimate(id, entry, micro, pico)
    redis.call('HSET', overdue, id, entry .. ' ' .. micro .. ' ' .. pico)
end

-- Ends a reservation and deletes the estimated row of its call; returns the amounts of both.
local function end_reservation(id, endpoint, micro, pico)
    local held = NOTHING
    if redis.call('HDEL', reservations, id) == 1 then
        redis.call('ZREM', due, id)
        held = {tonumber(micro), tonumber(pico)}
        if not is_doubt(id) then
            return held, NOTHING
        end
    end
    local kept = redis.call('HGET', overdue, id)
    if not kept then
        return held, NOTHING
    end
    local entry, of_micro, of_pico = string.match(kept, '^(%S+) (%S+) (%S+)$')
    if not entry then -- an earlier version wrote the entry alone
        entry, of_micro, of_pico = kept, micro, pico
    end
    redis.call('XDEL', ledger, entry)
    redis.call('HDEL', overdue, id)
    add_to_totals(endpoint, '-', '0', '0', of_micro, of_pico)
    return held, {tonumber(of_micro), tonumber(of_pico)}
end

local function in_period(period_s, number, at)
    return period_s == 0 or period_at(period_s, tonumber(at)) == number
end

local function has_tag(tag, tags)
    if tag == '' then
        return true
    end
    for _, one in ipairs(cjson.decode(tags)) do
        if one == tag then
            return true
        end
    end
    return false
end

local function fields_of(entry)
    local fields = {}
    for i = 1, #entry, 2 do
        fields[entry[i]] = entry[i + 1]
    end
    return fields
end

-- Returns whether calls of a period are among the latest: then the clock was set back since, and has returned.
function has_calls(tag, period_s, number)
    local function is_one(row)
        return (tonumber(row.at) or 0) >= number * period_s and has_tag(tag, row.tags)
    end
    for _, entry in ipairs(redis.call('XREVRANGE', ledger, '+', '-', 'COUNT', LATEST_CALLS)) do
        if is_one(fields_of(entry[2])) then
            return true
        end
    end
    for _, text in ipairs(redis.call('HVALS', reservations)) do
        if is_one(cjson.decode(text)) then
            return true
        end
    end
    return false
end

local function all_spent()
    local spent, sums = NOTHING, redis.call('HGETALL', totals)
    for i = 1, #sums, 2 do
        local what = cjson.decode(sums[i])[2]
        if what == 'micro' then
            spent = plus(spent, {tonumber(sums[i + 1]), 0})
        elseif what == 'pico' then
            spent = plus(spent, {0, tonumber(sums[i + 1])})
        end
    end
    return spent
end

-- Returns the sums of ledger and reservations for accounts, each given by its tag, the length of its periods and the
-- number of one period. All share one pass, as Redis does nothing else meanwhile.
function sum_accounts(wanted)
    local sums, spent, reserved = {}, {}, {} -- the latter two by tag
    for i, account in ipairs(wanted) do
        local tag, period_s, number = unpack(account)
        sums[i] = {period_s = period_s, period = number, spent = NOTHING, reserved = NOTHING}
        reserved[tag] = reserved[tag] or {}
        table.insert(reserved[tag], sums[i])
        if tag == '' and period_s == 0 then
            sums[i].spent = all_spent()
        else
            spent[tag] = spent[tag] or {}
            table.insert(spent[tag], sums[i])
        end
    end
    local function count(row, what, by_tag)
        for _, tag in ipairs(distinct(cjson.decode(row.tags))) do
            for _, sum in ipairs(by_tag[tag] or {}) do
                if in_period(sum.period_s, sum.period, row.at) then
                    sum[what] = plus(sum[what], {tonumber(row.micro), tonumber(row.pico)})
                end
            end
        end
    end
    local from = '-'
    while next(spent) and from do
        local rows = redis.call('XRANGE', ledger, from, '+', 'COUNT', 1000)
        from = rows[1] and '(' .. rows[#rows][1]
        for _, entry in ipairs(rows) do
            local row = fields_of(entry[2])
            if row.micro ~= '' then
                count(row, 'spent', spent)
            end
        end
    end
    for _, text in ipairs(redis.call('HVALS', reservations)) do
        count(cjson.decode(text), 'reserved', reserved)
    end
    return sums
end
