-- How answer() reads and writes records.

-- What is stored under KEYS[i]; false where that is nothing, or no string.
local function look(i)
  local text = written[KEYS[i]]
  if text == nil then text = stored[i] end
  if text == nil or text == UNREAD then
    text = redis.pcall('GET', KEYS[i])
    if type(text) ~= 'string' then text = false end
  end
  return text
end

-- From now on for so many ms: the number, the end, the end of the fence's retention, and that of
-- the key of a name that comes again.
local function life(text)
  local ttl = tonumber(text)
  local forgotten = now + ttl + ARGV[3]
  local longer = math.floor(forgotten + ARGV[3] / 8)
  return ttl, format(whole, now + ttl), format(whole, forgotten), format(whole, longer)
end

-- How long a tombstone waits, ms: it and the acquire that it overtook sit in the same
-- stalled node and run within moments of each other.
local TOMBSTONE = 60000

-- Claims that a record names (§1.9).
local CLAIMS_MAX = 4

-- FENCE and LEASE. The lease is '' where nobody holds it, and where it has expired.
local function fence_of(record)
  if not has_lease(record) or record < later then return sub(record, 27, 42), '' end
  return sub(record, 27, 42), sub(record, 52, 83)
end

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

-- Stores a record where `last` stands: when it expires, and from FENCE on. Its key lives until
-- `forgotten` at least, and until `longer` where that has to be written.
local function put(key, last, ends, rest, forgotten, longer)
  local kept = sub(last, 14, 26)
  local lives = kept >= forgotten
  if not lives then kept = longer end
  local record = ends .. kept .. rest
  if lives and #record >= #last then
    call('SETRANGE', key, '0', record)
  else
    -- With an end, since Redis makes one of a life for its replicas.
    call('SET', key, record, 'PXAT', kept)
  end
  written[key] = record
end

-- Takes the lease out of a record.
local function free(key, record)
  if byte(record, 14) ~= 48 and type(redis.pcall('SETRANGE', key, '0', ZEROS)) == 'number' then
    written[key] = UNREAD
  else
    store(key, ZEROS .. '0' .. sub(record, 52, 63) .. sub(record, 27, 42))
  end
end

-- Answers one call: the first of its n keys is KEYS[k], the first of its m arguments ARGV[a]. One
-- function of three parts, each in a file of its own and each with a `return`.
answer = function(op, text, k, n, a, m)
