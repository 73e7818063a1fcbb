-- Acquires, extends and releases any number of leases, in the order of their submission:
-- many requests cost the node one run, one look at the clock and one at all that is stored.
--
-- KEYS  [marker, what says that there are tombstones], then the keys of each
-- ARGV  1 the expected marker, or '' where releases are all and KEYS has neither of the first two
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       4 what all keys begin with
--       then of each its text, where each part has its place: a word costs a node more than what
--       is done with it. It begins with 'E' or 'R', or with a digit, and 'A' behind its sixteenth;
--       where that is 'e', 'r' or 'a', there come after it: how many keys, how many arguments,
--       the arguments. Otherwise it has none of these, and one key. One of 32 letters is a lease id,
--       to be released
-- Reply {now} where all replies are 1, as mostly they are, or {now, reply × n}; a reply is a code or
--       a list that begins with one. One that fails has its error there, and the others are as if it
--       had not been; -1 where the marker is another

-- What the calls share: what is stored, the time, the bounds.
local call, byte, sub, find, KEYS, ARGV = redis.call, string.byte, string.sub, string.find, KEYS, ARGV
local words, stored = #ARGV, call('TIME')
local now_us = stored[1] * 1000000 + stored[2]
local now = (now_us - now_us % 1000) / 1000
-- Times and tokens are compared as text, which costs less than reading them: all have 13 or 16 digits.
-- '%d' costs much less than '%.0f', and has the digits wherever Redis was built with 64 bits.
local format, whole, padded = string.format, '%d', '%016d'
-- A record is greater while its lease is held, and less from then on.
local later = format(whole, now + 1)
if #later ~= 13 then
  whole, padded = '%.0f', '%016.0f'
  later = format(whole, now + 1)
end
local token_max = format(padded, math.min(now_us + ARGV[2], 9007199254740991))
local ZEROS = '0000000000000'

-- All in one command. Lua has no room for the reply of very many keys.
stored = #KEYS <= 1000 and call('MGET', unpack(KEYS)) or {}
-- By key, what calls before have written, or UNREAD where that has to be asked for.
local written, UNREAD = {}, true
-- The replies, without those that are 1, and how many there are with them.
local replies, count = {now}, 1
-- Whether this node may vote, and whether it has any tombstone: if not, no acquire looks for its own.
local marked, tombstones
-- Where the next call begins.
local k, a = 1, 5
if ARGV[1] ~= '' then
  marked, tombstones, k = stored[1] == ARGV[1], stored[2], 3
  if stored[1] == nil then marked, tombstones = call('GET', KEYS[1]) == ARGV[1], call('GET', KEYS[2]) end
end

-- A ttl as it was asked for, its end, and the end of the fence's retention behind it. Mostly all
-- calls of a run ask for the same.
local ttl, ttl_end, ttl_kept
-- Answers any call.
local answer

while a <= words do
  -- The usual two: a lease is taken that nobody holds here, or given back that is held here. They
  -- need half of the strings that answer() needs, and no function, which Redis would make for each run.
  local text, key, done = ARGV[a], KEYS[k], false
  local record, after, kind = written[key], UNREAD, #text == 32 or byte(text, 17)
  if record == nil then record = stored[k] end
  if record == UNREAD then
    -- Another call of this run was here before.
  elseif kind == 65 then
    local proposed, asked = sub(text, 1, 16), sub(text, 18, 25)
    if asked ~= ttl and tonumber(asked) then
      ttl, ttl_end, ttl_kept = asked, format(whole, now + asked), format(whole, now + asked + ARGV[3])
    end
    if asked ~= ttl or proposed > token_max or not marked or tombstones then
      -- Refused, or an error.
    elseif record then
      local kept = sub(record, 14, 26)
      if record < later and kept >= ttl_kept and sub(record, 27, 42) < proposed then
        after = ttl_end .. kept .. text
        done = #after >= #record and redis.pcall('SETRANGE', key, '0', after) == #after
      end
    elseif record == false then
      after = ttl_end .. ZEROS .. text
      done = redis.pcall('SET', key, after, 'PXAT', ttl_kept, 'NX')
      done = done and done.ok
    end
  elseif kind == true or byte(text) == 82 and byte(text, 34) ~= 48 then
    local lease = kind == true and text or sub(text, 2, 33)
    if record and record > later and find(record, lease, 52, true) == 52 then
      if byte(record, 14) ~= 48 then
        done = redis.pcall('SETRANGE', key, '0', ZEROS) == #record
        -- The next holder's acquire is behind it.
        if lease ~= text then after = ZEROS .. sub(record, 14) end
      else
        after = ZEROS .. '0' .. sub(lease, 1, 12) .. sub(record, 27, 42)
        done = redis.pcall('SET', key, after, 'KEEPTTL').ok
      end
      -- Nodes that were never asked for it may have got a copy.
      if done and byte(record, 43) % 32 ~= 1 then replies[count + 1] = {1, 1} end
      -- An error is none of a release: it is a hint.
      if done then redis.pcall('PUBLISH', key, '') end
    end
  end
  if done then
    written[key] = after
    k, a, count = k + 1, a + 1, count + 1
  else
    if not answer then
