-- Acquires, extends and releases any number of leases, in the order of their submission:
-- many requests cost the node one run, one look at the clock and one at all that is stored.
--
-- KEYS  [marker, what says that there are tombstones], then the keys of each
-- ARGV  1 the expected marker, or '' where releases are all and KEYS has neither of the first two
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       4 what all keys begin with
--       then of each its text, where each part has its place: a word costs a node more than what
--       is done with it. It begins with 'A', 'E' or 'R'; where that is 'a', 'e' or 'r', there
--       come after it: how many keys, how many arguments, the arguments. Otherwise it has none of
--       these, and one key
-- Reply {now, reply × n}; a reply is a code or a list that begins with one. One that fails has
--       its error there, and the others are as if it had not been; -1 where the marker is another
end -- of answer(), which state.lua begins

local k, a, words = 1, 5, #ARGV
if ARGV[1] ~= '' then
  marked, tombstones, k = look(1) == ARGV[1], look(2), 3
end
local function serve()
  while a <= words do
    local text, its_k, its_a, n, m = ARGV[a], k, a + 1, 1, 0
    local op = byte(text)
    if op > 96 then
      op, n, m, its_a = op - 32, tonumber(ARGV[its_a]), tonumber(ARGV[its_a + 1]), its_a + 2
    end
    -- Where this one fails, it goes on behind it.
    k, a, count = its_k + n, its_a + m, count + 1
    replies[count] = answer(op, text, its_k, n, its_a, m)
  end
end

repeat
  local from = a
  local done, failure = pcall(serve)
  if not done then
    -- Arguments that are none of a batch.
    if a == from then error(failure, 0) end
    -- What a command answered has a code in front, what Lua says has not.
    failure = tostring(type(failure) == 'table' and failure.err or failure)
    -- Redis 6 says where, too.
    failure = string.match(failure, '^@user_script: %d+: %-(.*)$') or failure
    replies[count] = {err = string.find(failure, '^%u+ ') and failure or 'ERR ' .. failure}
  end
until done

-- Mostly nobody waits for anything, and to ask costs less than two of these. An error is none of
-- a release: they are hints.
if #changed == 3 or #changed > 3 and redis.pcall('PUBSUB', 'NUMSUB', ARGV[4] .. 'waiting')[2] ~= 0 then
  for i = 1, #changed, 3 do
    local channel, text, at = changed[i], changed[i + 1], changed[i + 2]
    local listen = byte(text, 34) == 50 and redis.pcall('PUBSUB', 'NUMSUB', channel)[2] or 2
    if listen > 1 then listen = redis.pcall('PUBLISH', channel, sub(text, 35)) end
    if replies[at] == 1 and type(listen) == 'number' and listen > 1 then replies[at] = {1, listen} end
  end
end
return replies
