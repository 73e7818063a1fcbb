-- Acquires, extends and releases any number of leases, in the order of their submission:
-- many requests cost the node one run, one look at the clock and one at all that is stored.
--
-- KEYS  [marker], then the keys of each
-- ARGV  1 the expected marker, or '' where releases are all and KEYS has no marker
--       2 how far a token may be ahead of the clock, µs   3 fence retention, ms
--       4 what the keys of tombstones begin with
--       then of each its text, where each part has its place: a word costs a node more than what
--       is done with it. It begins with 'A', 'E' or 'R'; where that is 'a', 'e' or 'r', there
--       come after it: how many keys, how many arguments, the arguments. Otherwise it has none of
--       these, and one key beside a tombstone
-- Reply {now, reply × n}; a reply is a code or a list that begins with one. One that fails has
--       its error there, and the others are as if it had not been; -1 where the marker is another
local marked, k, a, words = false, 1, 5, #ARGV
if ARGV[1] ~= '' then
  marked, k = look(1) == ARGV[1], 2
end
local replies, count, pcall = {now}, 1, pcall
while a <= words do
  local text = ARGV[a]
  local op, n, m = byte(text), 1, 0
  a = a + 1
  if op > 96 then
    op, n, m = op - 32, tonumber(ARGV[a]), tonumber(ARGV[a + 1])
    a = a + 2
  elseif op == 65 then
    n = 2
  end
  local done, reply = true, -1
  if op == 82 then
    done, reply = pcall(release, text, k, n, a, m)
  elseif marked then
    done, reply = pcall(op == 65 and acquire or extend, text, k, n, a, m)
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
