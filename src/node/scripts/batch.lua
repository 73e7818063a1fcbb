-- Acquires, extends and releases any number of leases, in the order of their submission:
-- many requests cost the node one run, one look at the clock and one at the marker.
--
-- KEYS  [marker], then the keys of each
-- ARGV  1 the expected marker, or '' where releases are all and KEYS has no marker
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       then of each:  'A', 'E' or 'R'   how many keys   how many arguments   the arguments
-- Reply {now, reply × n}; a reply is a code or a list that begins with one. One that fails has
--       its error there, and the others are as if it had not been; -1 where the marker is another
local now, now_us = clock()
local marked, k, a = false, 1, 4
if ARGV[1] ~= '' then
  marked, k = redis.pcall('GET', KEYS[1]) == ARGV[1], 2
end
local replies, count = {now}, 1
while ARGV[a] do
  local op, n, m = ARGV[a], tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  a = a + 3
  local done, reply = true, -1
  if op == 'R' then
    done, reply = pcall(release, k, n, a, m, now)
  elseif marked then
    done, reply = pcall(op == 'A' and acquire or extend, k, n, a, m, now, now_us)
  end
  if not done then
    -- What a command answered has a code in front, what Lua says has not.
    reply = tostring(type(reply) == 'table' and reply.err or reply)
    -- Redis 6 says where, too.
    reply = string.match(reply, '^@user_script: %d+: %-(.*)$') or reply
    reply = {err = string.find(reply, '^%u+ ') and reply or 'ERR ' .. reply}
  end
  count = count + 1
  replies[count] = reply
  k, a = k + n, a + m
end
return replies
