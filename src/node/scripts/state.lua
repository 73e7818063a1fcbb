-- What the calls of one batch share: what is stored, the time, the bounds. Part of batch.lua,
-- where KEYS and ARGV are documented.
local call, byte, sub, find, KEYS, ARGV = redis.call, string.byte, string.sub, string.find, KEYS, ARGV
local now, now_us = clock()
-- Times and tokens are compared as text, which costs less than reading them: all have 13 or 16 digits.
-- '%d' costs much less than '%.0f', and has the digits wherever Redis was built with 64 bits.
local format, whole, padded = string.format, '%d', '%016d'
local now_text = format(whole, now)
if #now_text ~= 13 then
  whole, padded = '%.0f', '%016.0f'
  now_text = format(whole, now)
end
local token_max = format(padded, math.min(now_us + ARGV[2], 9007199254740991))

-- All in one command. Lua has no room for the reply of very many keys.
local stored = #KEYS <= 1000 and call('MGET', unpack(KEYS)) or {}
-- By key, what calls before have written.
local written = {}

-- What is stored under KEYS[i]; false where that is nothing, or no string.
local function look(i)
  local text = written[KEYS[i]]
  if text == nil then text = stored[i] end
  if text == nil then
    text = redis.pcall('GET', KEYS[i])
    if type(text) ~= 'string' then text = false end
  end
  return text
end

-- The parts of a record that stand at fixed places. The lease is '' where nobody holds it, and
-- where it has expired.
local function fence_of(record)
  if #record == 16 and find(record, '^%d+$') then return record, '' end
  if byte(record, 17) ~= 32 or byte(record, 48) ~= 32 or byte(record, 81) ~= 32 then
    error('not a lease record')
  end
  if sub(record, 35, 47) <= now_text then return sub(record, 1, 16), '' end
  return sub(record, 1, 16), sub(record, 49, 80)
end

-- From now on for so many ms: the number, the end, and the end of the fence's retention. Mostly
-- all calls of a batch ask for the same.
local of_text, of_ttl, of_end, of_fence
local function life(text)
  if text ~= of_text then
    local ttl = tonumber(text)
    of_end, of_fence = format(whole, now + ttl), format(whole, now + ttl + ARGV[3])
    of_text, of_ttl = text, ttl
  end
  return of_ttl, of_end, of_fence
end

-- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same
-- stalled node and run within moments of each other.
local TOMBSTONE = 60000
-- Whether there is any. If not, no acquire looks for its own.
local tombstones
-- Whether this node may vote.
local marked
-- The replies, and how many there are.
local replies, count = {now}, 1
-- Of what was released: channel, text and number of the reply, one after the other.
local changed = {}

-- Stores `text`, to expire when what is there does, or after `life` ms. Out of memory, Redis
-- refuses the first SET of a script but never a DEL, and after a DEL it lets the SET pass.
local function store(key, text, life)
  local done
  if life then
    done = redis.pcall('SET', key, text, 'PX', life)
  else
    done = redis.pcall('SET', key, text, 'KEEPTTL')
  end
  if done.err then
    life = life or math.max(call('PTTL', key), 1)
    call('DEL', key)
    call('SET', key, text, 'PX', life)
  end
  written[key] = text
end

local function note(channel, text)
  local last = #changed
  changed[last + 1], changed[last + 2], changed[last + 3] = channel, text, count
end

-- Answers one call: the first of its n keys is KEYS[k], the first of its m arguments ARGV[a]. One
-- function of three parts, each in a file of its own and each with a `return`: Redis makes every
-- function anew for each run.
local function answer(op, text, k, n, a, m)
